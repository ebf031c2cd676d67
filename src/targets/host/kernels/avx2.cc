// AVX2, FMA and F16C.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_VECTOR_BYTES 32
#define ORT_AIE_MADDUBS(bytes, signed_bytes) \
  (vh) _mm256_maddubs_epi16((__m256i)(bytes), (__m256i)(signed_bytes))
#define ORT_AIE_MADD(a, w) (vi) _mm256_madd_epi16((__m256i)(a), (__m256i)(w))
#define ORT_AIE_ADD_PAIRS(x) (vi) _mm256_madd_epi16((__m256i)(x), _mm256_set1_epi16(1))

namespace ort_aie::host {
namespace {

#include "targets/host/kernels/generic/kernels.inc"
#include "targets/host/kernels/int8_avx2.inc"

// 32 code bytes are 4 k x 8 pairs of out-features. Interleaving two k gives 16-bit lanes of the
// bytes that maddubs multiplies and adds: k, k+1 in the low half, k+2, k+3 in the high half.
inline __m256i Interleaved(const uint8_t* codes) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  return _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), order);
}

// Even or odd out-features of half a block, 32 k: 16-bit sums of at most 8 * 2 * 15 * 127.
inline vli AddLanes(__m256i sums) {
  return (vli)_mm256_add_epi32(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(sums)),
                               _mm256_cvtepi16_epi32(_mm256_extracti128_si256(sums, 1)));
}

template <Hint kHint, bool kSymmetric>
inline void FusedDqpInt8Blocks(const uint8_t* blocks, int64_t k_blocks, const int8_t* a,
                               const float* scales, const int32_t* q_sums,
                               const BlockLayout& layout, int64_t ahead, float* y) {
  const __m256i spread = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1,  //
                                          2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3);
  const __m256i nibble = _mm256_set1_epi8(15);
  vlf even[2] = {}, odd[2] = {};
  for (int64_t b = 0; b < k_blocks;
       ++b, blocks += layout.bytes, a += 256, scales += 8, q_sums += 8) {
    for (int g = 0; g < 8; ++g) {
      FetchEighth<kHint>(blocks + ahead, layout, g);
      __m256i e[2] = {}, o[2] = {};
      for (int k = 0; k < 32; k += 4) {
        int32_t four;
        __builtin_memcpy(&four, a + g * 32 + k, 4);
        const __m256i activations = _mm256_shuffle_epi8(_mm256_set1_epi32(four), spread);
        for (int half = 0; half < 2; ++half) {
          const uint8_t* codes = blocks + layout.codes + half * kHalfBytes + g * 256 + k * 8;
          const __m256i x = Interleaved(codes);
          const __m256i low = _mm256_and_si256(x, nibble);
          const __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble);
          e[half] = _mm256_add_epi16(e[half], _mm256_maddubs_epi16(low, activations));
          o[half] = _mm256_add_epi16(o[half], _mm256_maddubs_epi16(high, activations));
        }
      }
      const float sum = scales[g] * (float)q_sums[g];
      const int32_t offset = kSymmetric ? -8 * q_sums[g] : 0;
      for (int half = 0; half < 2; ++half) {
        const EvenOdd scale = LoadEvenOdd(ScalesAt(blocks, layout, g) + half * 32);
        even[half] +=
            __builtin_convertvector(AddLanes(e[half]) + offset, vlf) * (scale.even * scales[g]);
        odd[half] +=
            __builtin_convertvector(AddLanes(o[half]) + offset, vlf) * (scale.odd * scales[g]);
        if (!kSymmetric) {
          const EvenOdd min = LoadEvenOdd(MinimaAt(blocks, layout, g) + half * 32);
          even[half] += min.even * sum;
          odd[half] += min.odd * sum;
        }
      }
    }
  }
  for (int half = 0; half < 2; ++half) StoreInterleaved(y + 16 * half, even[half], odd[half]);
}

template <Hint kHint, int kAhead>
void FusedDqpInt8(const uint8_t* blocks, int64_t k_blocks, const int8_t* a, const float* scales,
                  const int32_t* q_sums, const BlockLayout& layout, float* y) {
  (layout.symmetric ? FusedDqpInt8Blocks<kHint, true>
                    : FusedDqpInt8Blocks<kHint, false>)(blocks, k_blocks, a, scales, q_sums, layout,
                                                        kAhead * layout.bytes, y);
}

// Adds the lanes of two vectors in halves: those of x into the low half, those of y into the high
// half.
inline __m256 AddHalves(__m256 x, __m256 y) {
  return _mm256_add_ps(_mm256_blend_ps(x, y, 0xf0), _mm256_permute2f128_ps(x, y, 0x21));
}

// 32 code bytes are 4 k x 8 pairs of out-features: as 32-bit lanes, lane j holds k j / 2, and its
// nibble p is out-feature p + 8 (j % 2). A nibble becomes a float in place, as code * 16^p with p <
// 4, so that no bytes are moved and no nibbles are shifted one by one. The power of 16 is exact,
// and is taken out of the group's sum, which overflows from activations of 1e32 on. sums[p] adds up
// four k and two out-features in its lanes.
inline void AddProducts(const uint8_t* codes, __m256 activations, __m256 sums[8]) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const __m256i high = _mm256_srli_epi32(x, 16);
  for (int p = 0; p < 4; ++p) {
    const __m256i nibble = _mm256_set1_epi32(15 << (4 * p));
    const auto add = [&](__m256 sum, __m256i lanes) {
      return _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_and_si256(lanes, nibble)), activations, sum);
    };
    sums[p] = add(sums[p], x);
    sums[4 + p] = add(sums[4 + p], high);
  }
}

// Four such sums -> eight totals: of p = a, a + 8, b, b + 8, c, c + 8, d, d + 8.
inline __m256 Totals(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 ac = AddHalves(a, c), bd = AddHalves(b, d);
  return _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xee));
}

template <Hint kHint, bool kSymmetric>
inline void FusedDqpBf16Blocks(const uint8_t* blocks, int64_t k_blocks, const float* a,
                               const float* sums, const BlockLayout& layout, int64_t ahead,
                               float* y) {
  // The totals of even out-features come in the order 0, 8, 2, 10, 4, 12, 6, 14; those of odd ones
  // likewise.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i back = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
  const __m256 even_power = _mm256_setr_ps(1, 1, 0x1p-8f, 0x1p-8f, 1, 1, 0x1p-8f, 0x1p-8f);
  const __m256 odd_power = even_power * 0x1p-4f;
  const __m256i spread = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const auto load_pairs = [order](const uint8_t* p) {
    const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const vlu ordered = (vlu)_mm256_permutevar8x32_epi32(pairs, order);
    return EvenOdd{(vlf)(ordered << 16), (vlf)(ordered & 0xffff0000u)};
  };
  vlf even[2] = {}, odd[2] = {};
  for (int64_t b = 0; b < k_blocks; ++b, blocks += layout.bytes, a += 256, sums += 8) {
    for (int g = 0; g < 8; ++g) {
      FetchEighth<kHint>(blocks + ahead, layout, g);
      for (int half = 0; half < 2; ++half) {
        const uint8_t* codes = blocks + layout.codes + half * kHalfBytes + g * 256;
        __m256 s[8] = {};
        for (int k = 0; k < 32; k += 4) {
          const __m256 four = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(a + g * 32 + k));
          AddProducts(codes + 8 * k, _mm256_permutevar8x32_ps(four, spread), s);
        }
        const float offset = kSymmetric ? -8.0f * sums[g] : 0.0f;
        const EvenOdd scale = load_pairs(ScalesAt(blocks, layout, g) + half * 32);
        even[half] += (Totals(s[0], s[2], s[4], s[6]) * even_power + offset) * scale.even;
        odd[half] += (Totals(s[1], s[3], s[5], s[7]) * odd_power + offset) * scale.odd;
        if (!kSymmetric) {
          const EvenOdd min = load_pairs(MinimaAt(blocks, layout, g) + half * 32);
          even[half] += min.even * sums[g];
          odd[half] += min.odd * sums[g];
        }
      }
    }
  }
  for (int half = 0; half < 2; ++half) {
    StoreInterleaved(y + 16 * half, _mm256_permutevar8x32_ps(even[half], back),
                     _mm256_permutevar8x32_ps(odd[half], back));
  }
}

template <Hint kHint, int kAhead>
void FusedDqpBf16Avx2(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                      const BlockLayout& layout, float* y) {
  (layout.symmetric ? FusedDqpBf16Blocks<kHint, true>
                    : FusedDqpBf16Blocks<kHint, false>)(blocks, k_blocks, a, sums, layout,
                                                        kAhead * layout.bytes, y);
}

// Fetches so many blocks ahead for one row.
template <Hint kHint, int kAhead = 1>
constexpr Kernels Avx2Kernels() {
  Kernels kernels = GenericKernels("avx2");
  kernels.fused_dqp_bf16 = FusedDqpBf16Avx2<kHint, kAhead>;
  kernels.fused_dqp_int8 = FusedDqpInt8<kHint, kAhead>;
  kernels.rows_int8 = RowsInt8Avx2;
  kernels.unpack_block = UnpackBlockAvx2;
  kernels.most_rows = kMostRows;
  kernels.lookup = &kAvx2Lookup;
  kernels.files = kAvx2Files.kernels;
  kernels.bytes = GenericBytes<ByteBlockAhead<kRowsHint>>(kMostByteRows);
  return kernels;
}

}  // namespace

extern const Kernels kAvx2Kernels, kAvx2T1Kernels, kAvx2T2Kernels, kAvx2NtaKernels;
extern const Kernels kAvx2TwoAheadKernels, kAvx2FourAheadKernels;
constinit const Kernels kAvx2Kernels = Avx2Kernels<_MM_HINT_T0>();
constinit const Kernels kAvx2T1Kernels = Avx2Kernels<_MM_HINT_T1>();
constinit const Kernels kAvx2T2Kernels = Avx2Kernels<_MM_HINT_T2>();
constinit const Kernels kAvx2NtaKernels = Avx2Kernels<_MM_HINT_NTA>();
constinit const Kernels kAvx2TwoAheadKernels = Avx2Kernels<_MM_HINT_T1, 2>();
constinit const Kernels kAvx2FourAheadKernels = Avx2Kernels<_MM_HINT_T1, 4>();
#ifdef ORT_AIE_STANDINS
extern const Kernels kAvx512Bf16StandinKernels;
constinit const Kernels kAvx512Bf16StandinKernels =
    WithDotProducts(Avx2Kernels<_MM_HINT_T0>(), kAvx512Bf16Standin,
                    {OneRowBf16Standin, RowsBf16Standin, DequantizeBlockBf16Standin,
                     GemmBf16Standin, &kAvx512Bf16StandinAttention});
#endif

}  // namespace ort_aie::host
