// AVX2, FMA and F16C.
#include <immintrin.h>

#include "targets/host/kernels.h"

#define ORT_AIE_VECTOR_BYTES 32
#define ORT_AIE_MADDUBS(w, a) (vh) _mm256_maddubs_epi16((__m256i)(w), (__m256i)(a))

namespace ort_aie::host {
namespace {

#include "targets/host/kernels_generic.inc"

// Even or odd out-features of half a block, 32 k: 16-bit sums of at most 8 * 2 * 15 * 127.
inline vli AddLanes(__m256i sums) {
  return (vli)_mm256_add_epi32(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(sums)),
                               _mm256_cvtepi16_epi32(_mm256_extracti128_si256(sums, 1)));
}

// 32 code bytes are 4 k x 8 pairs of out-features. Interleaving two k gives 16-bit lanes whose
// bytes are what maddubs multiplies and adds: k, k+1 in the low half, k+2, k+3 in the high half.
void FusedDqpInt8(const uint8_t* blocks, int64_t k_blocks, const int8_t* a, const float* scales,
                  const int32_t* q_sums, bool /*symmetric*/, float* y) {
  const __m256i interleave = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  const __m256i spread = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1,  //
                                          2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3);
  const __m256i nibble = _mm256_set1_epi8(15);
  vlf even[2] = {}, odd[2] = {};
  for (int64_t b = 0; b < k_blocks;
       ++b, blocks += kBlockBytes, a += 256, scales += 8, q_sums += 8) {
    for (int g = 0; g < 8; ++g) {
      __m256i e[2] = {}, o[2] = {};
      for (int k = 0; k < 32; k += 4) {
        int32_t four;
        __builtin_memcpy(&four, a + g * 32 + k, 4);
        const __m256i activations = _mm256_shuffle_epi8(_mm256_set1_epi32(four), spread);
        for (int half = 0; half < 2; ++half) {
          const uint8_t* codes = blocks + kCodesOffset + half * kHalfBytes + g * 256 + k * 8;
          _mm_prefetch(reinterpret_cast<const char*>(codes + kBlockBytes), _MM_HINT_T0);
          const __m256i x = _mm256_shuffle_epi8(
              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), interleave);
          const __m256i low = _mm256_and_si256(x, nibble);
          const __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble);
          e[half] = _mm256_add_epi16(e[half], _mm256_maddubs_epi16(low, activations));
          o[half] = _mm256_add_epi16(o[half], _mm256_maddubs_epi16(high, activations));
        }
      }
      const float sum = scales[g] * (float)q_sums[g];
      for (int half = 0; half < 2; ++half) {
        const EvenOdd scale = LoadEvenOdd(blocks + g * 64 + half * 32);
        const EvenOdd min = LoadEvenOdd(blocks + kMinsOffset + g * 64 + half * 32);
        even[half] += __builtin_convertvector(AddLanes(e[half]), vlf) * (scale.even * scales[g]) +
                      min.even * sum;
        odd[half] += __builtin_convertvector(AddLanes(o[half]), vlf) * (scale.odd * scales[g]) +
                     min.odd * sum;
      }
    }
  }
  for (int half = 0; half < 2; ++half) StoreInterleaved(y + 16 * half, even[half], odd[half]);
}

}  // namespace

extern const Kernels kAvx2Kernels;
constinit const Kernels kAvx2Kernels = [] {
  Kernels kernels = GenericKernels("avx2");
  kernels.fused_dqp_int8 = FusedDqpInt8;
  return kernels;
}();

}  // namespace ort_aie::host
