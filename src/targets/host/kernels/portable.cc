// The baseline of the compiler's target (SSE2 on x86-64), written in vector extensions but for one
// instruction.
#include <stddef.h>
#include <stdint.h>

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_VECTOR_BYTES 16
#if defined(__SSE2__)
#define ORT_AIE_MADD(a, w) (vi) __builtin_ia32_pmaddwd128((vh)(a), w)
#endif

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/generic/kernels.inc"

// Eight pairs of out-features as 16-bit lanes: 16 products of at most 15 * 127 fit, 32 do not, so
// each group takes two turns.
void FusedDqpInt8(const uint8_t* blocks, int64_t k_blocks, const int8_t* a, const float* scales,
                  const int32_t* q_sums, const BlockLayout& layout, float* y) {
  typedef uint8_t v16b __attribute__((vector_size(16)));
  typedef int64_t v2q __attribute__((vector_size(16)));
  for (int half = 0; half < 2; ++half) {
    vlf even[2] = {}, odd[2] = {};
    for (int64_t b = 0; b < k_blocks; ++b) {
      const uint8_t* block = blocks + b * layout.bytes;
      for (int g = 0; g < 8; ++g) {
        const uint8_t* codes = block + layout.codes + half * kHalfBytes + g * 256;
        const int8_t* x = a + b * 256 + g * 32;
        vli e[2] = {}, o[2] = {};
        for (int turn = 0; turn < 32; turn += 16) {
          vh e16 = {}, o16 = {};
          for (int k = turn; k < turn + 16; ++k) {
            int64_t eight;
            __builtin_memcpy(&eight, codes + 8 * k, 8);
            const v16b bytes = (v16b)v2q{eight};
            const vh shorts = (vh)__builtin_shufflevector(bytes, v16b{}, 0, 16, 1, 17, 2, 18, 3, 19,
                                                          4, 20, 5, 21, 6, 22, 7, 23);
            e16 += (shorts & 15) * (int16_t)x[k];
            o16 += (shorts >> 4) * (int16_t)x[k];
          }
          e[0] += (vli)__builtin_shufflevector(e16, e16, 0, 8, 1, 9, 2, 10, 3, 11) >> 16;
          e[1] += (vli)__builtin_shufflevector(e16, e16, 4, 12, 5, 13, 6, 14, 7, 15) >> 16;
          o[0] += (vli)__builtin_shufflevector(o16, o16, 0, 8, 1, 9, 2, 10, 3, 11) >> 16;
          o[1] += (vli)__builtin_shufflevector(o16, o16, 4, 12, 5, 13, 6, 14, 7, 15) >> 16;
        }
        for (int i = 0; i < 2; ++i) {
          const int64_t offset = half * 32 + i * 16;
          const EvenOdd scale = LoadEvenOdd(ScalesAt(block, layout, g) + offset);
          const EvenOdd min = LoadMinima(block, layout, g, offset);
          const float factor = scales[b * 8 + g], sum = factor * (float)q_sums[b * 8 + g];
          even[i] += __builtin_convertvector(e[i], vlf) * (scale.even * factor) + min.even * sum;
          odd[i] += __builtin_convertvector(o[i], vlf) * (scale.odd * factor) + min.odd * sum;
        }
      }
    }
    for (int i = 0; i < 2; ++i) StoreInterleaved(y + 16 * half + 8 * i, even[i], odd[i]);
  }
}

constexpr Kernels PortableKernels() {
  Kernels kernels = GenericKernels("portable");
  kernels.fused_dqp_int8 = FusedDqpInt8;
  kernels.most_rows = {.int8 = 24, .bf16 = 4};
  kernels.lookup = &kPortableLookup;
  kernels.files = kPortableFiles.kernels;
  // For 8 bits on an Intel Xeon, GEMM does not break even before 64 rows of int8, and at 4 to 8
  // rows of bf16.
  kernels.bytes = GenericBytes<NothingAhead>({.int8 = 64, .bf16 = 4});
  return kernels;
}

}  // namespace

extern const Kernels kPortableKernels;
constinit const Kernels kPortableKernels = PortableKernels();
#ifdef ORT_AIE_STANDINS
extern const Kernels kAmxStandinKernels;
constinit const Kernels kAmxStandinKernels =
    WithTiles(PortableKernels(), kAmxStandin, GemmBf16AmxStandin, kAmxStandinAttention);
#endif

}  // namespace ort_aie::host
