// AVX512_BF16 on top of kernels_avx512.cc: the GEMM alone gains from it.
#include <immintrin.h>

#include "targets/host/kernels.h"

namespace ort_aie::host {
namespace {

// R rows x 32 out-features in registers, accumulated over all of k. 12 x 2 accumulators and two
// weight vectors fit the 32 registers, and hide the latency of the dot product.
template <int R>
inline void Tile(const uint16_t* a, int64_t lda, const uint16_t* panel, int64_t k_pairs, float* y,
                 int64_t ldy) {
  __m512 low[R], high[R];
  for (int r = 0; r < R; ++r) low[r] = high[r] = _mm512_setzero_ps();
  for (int64_t p = 0; p < k_pairs; ++p, panel += 64) {
    const __m512bh w0 = (__m512bh)_mm512_loadu_si512(panel);
    const __m512bh w1 = (__m512bh)_mm512_loadu_si512(panel + 32);
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, a + r * lda + 2 * p, 4);
      const __m512bh activations = (__m512bh)_mm512_set1_epi32(pair);
      low[r] = _mm512_dpbf16_ps(low[r], activations, w0);
      high[r] = _mm512_dpbf16_ps(high[r], activations, w1);
    }
  }
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(y + r * ldy, low[r]);
    _mm512_storeu_ps(y + r * ldy + 16, high[r]);
  }
}

}  // namespace

void GemmBf16Avx512Bf16(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                        int64_t k_pairs, float* y, int64_t ldy) {
  int64_t r = 0;
  for (; r + 12 <= rows; r += 12) Tile<12>(a + r * lda, lda, panel, k_pairs, y + r * ldy, ldy);
  for (; r + 4 <= rows; r += 4) Tile<4>(a + r * lda, lda, panel, k_pairs, y + r * ldy, ldy);
  for (; r < rows; ++r) Tile<1>(a + r * lda, lda, panel, k_pairs, y + r * ldy, ldy);
}

}  // namespace ort_aie::host
