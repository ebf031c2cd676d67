// FusedDQP with bfloat16 dot products, of one row and of a few. Codes and activations are exact in
// bfloat16, and a group's scale is applied to its sum, so that no weight is rounded.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {

using Hint = decltype(_MM_HINT_T0);  // an enum in GCC, an int in clang

#include "targets/host/kernels/generic/blocks.inc"
#include "targets/host/kernels/generic/tiles.inc"
#include "targets/host/kernels/rows_avx512_blocks.inc"

// The codes 0..15 in bfloat16, or -8..7 if the minima are -8 * scale; twice, because the permute
// reads five bits of its index, of which only four are the code's.
template <bool kSymmetric>
inline __m512i CodeTable() {
  alignas(64) uint16_t table[32];
  for (int i = 0; i < 32; ++i) {
    const float code = (float)(i % 16 - (kSymmetric ? 8 : 0));
    uint32_t bits;
    __builtin_memcpy(&bits, &code, 4);
    table[i] = (uint16_t)(bits >> 16);
  }
  return _mm512_load_si512(table);
}

struct Bf16Rows {
  const float *a, *sums;
  int64_t lda;
  float* y;
  int64_t ldy;
};

// R rows by one block, added to y, while the block `ahead` bytes on is fetched. From the 64 bits of
// a pair of out-features (InOrder), a multishift brings the codes of k and k + 1 into two words for
// each of the two.
template <int R, bool kSymmetric, bool kPrefetch, Hint kHint>
inline void Bf16Block(const uint8_t* block, const BlockLayout& layout, const Bf16Rows& rows,
                      int64_t ahead) {
  const __m512i table = CodeTable<kSymmetric>();
  const __m512i pick[4] = {
      _mm512_set1_epi64(0x000c000400080000), _mm512_set1_epi64(0x001c001400180010),
      _mm512_set1_epi64(0x002c002400280020), _mm512_set1_epi64(0x003c003400380030)};
  alignas(64) uint16_t a[R][256];
  for (int r = 0; r < R; ++r) {
    for (int k = 0; k < 256; k += 32) {
      const float* x = rows.a + r * rows.lda + k;
      _mm512_store_si512(a[r] + k,
                         (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)));
    }
  }
  __m512 totals[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    totals[r][0] = _mm512_loadu_ps(rows.y + r * rows.ldy);
    totals[r][1] = _mm512_loadu_ps(rows.y + r * rows.ldy + 16);
  }
  for (int g = 0; g < 8; ++g) {
    const uint8_t* codes = block + layout.codes + g * 256;
    if (kPrefetch) PrefetchGroup<kHint, !kSymmetric>(block + ahead, layout, g);
    __m512 dots[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) dots[r][0] = dots[r][1] = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int k = 0; k < 32; k += 8) {
      const __m512i low = InOrder(codes + 8 * k), high = InOrder(codes + kHalfBytes + 8 * k);
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; ++pair) {
        const auto weights = [&](__m512i x) {
          return (__m512bh)_mm512_permutexvar_epi16(_mm512_multishift_epi64_epi8(pick[pair], x),
                                                    table);
        };
        const __m512bh w0 = weights(low), w1 = weights(high);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          int32_t two;
          __builtin_memcpy(&two, a[r] + g * 32 + k + 2 * pair, 4);
          const auto activations = (__m512bh)_mm512_set1_epi32(two);
          dots[r][0] = _mm512_dpbf16_ps(dots[r][0], w0, activations);
          dots[r][1] = _mm512_dpbf16_ps(dots[r][1], w1, activations);
        }
      }
    }
    const uint8_t* scales = ScalesAt(block, layout, g);
    const __m512 scale0 = Widened(scales), scale1 = Widened(scales + 32);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      totals[r][0] = _mm512_fmadd_ps(dots[r][0], scale0, totals[r][0]);
      totals[r][1] = _mm512_fmadd_ps(dots[r][1], scale1, totals[r][1]);
    }
    if (!kSymmetric) {
      const uint8_t* minima = MinimaAt(block, layout, g);
      const __m512 min0 = Widened(minima), min1 = Widened(minima + 32);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512 sum = _mm512_set1_ps(rows.sums[r * (rows.lda / 32) + g]);
        totals[r][0] = _mm512_fmadd_ps(min0, sum, totals[r][0]);
        totals[r][1] = _mm512_fmadd_ps(min1, sum, totals[r][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(rows.y + r * rows.ldy, totals[r][0]);
    _mm512_storeu_ps(rows.y + r * rows.ldy + 16, totals[r][1]);
  }
}

template <Hint kHint, bool kSymmetric>
void MultiplyBlocks(const uint8_t* blocks, int64_t k_blocks, const BlockLayout& layout,
                    const Bf16Rows& rows, int64_t count) {
  Clear(count, rows.y, rows.ldy);
  for (int64_t b = 0; b < k_blocks; ++b) {
    ForTiles<8, 6>(count, [&]<int R, bool kFirst>(Tile<R, kFirst>, int64_t r) {
      Bf16Block<R, kSymmetric, kFirst, kHint>(
          blocks + b * layout.bytes, layout,
          {rows.a + r * rows.lda + b * 256, rows.sums + r * (rows.lda / 32) + b * 8, rows.lda,
           rows.y + r * rows.ldy, rows.ldy},
          layout.bytes);
    });
  }
}

template <Hint kHint>
void MultiplyRows(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                  int64_t rows, const BlockLayout& layout, float* y, int64_t ldy) {
  const Bf16Rows all{a, sums, k_blocks * 256, y, ldy};
  (layout.symmetric ? MultiplyBlocks<kHint, true>
                    : MultiplyBlocks<kHint, false>)(blocks, k_blocks, layout, all, rows);
}

template <Hint kHint, bool kSymmetric>
void OneRowBlocks(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                  const BlockLayout& layout, int64_t ahead, float* y) {
  Clear(1, y, 32);
  for (int64_t b = 0; b < k_blocks; ++b, blocks += layout.bytes, a += 256, sums += 8) {
    Bf16Block<1, kSymmetric, true, kHint>(blocks, layout, {a, sums, 256, y, 32}, ahead);
  }
}

}  // namespace

#define ORT_AIE_ONE_ROW(name, hint, blocks_ahead)                                       \
  void name(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums, \
            const BlockLayout& layout, float* y) {                                      \
    (layout.symmetric ? OneRowBlocks<hint, true>                                        \
                      : OneRowBlocks<hint, false>)(blocks, k_blocks, a, sums, layout,   \
                                                   (blocks_ahead) * layout.bytes, y);   \
  }
ORT_AIE_ONE_ROW(OneRowBf16Nta, _MM_HINT_NTA, 1)
ORT_AIE_ONE_ROW(OneRowBf16T0, _MM_HINT_T0, 1)
ORT_AIE_ONE_ROW(OneRowBf16T1, _MM_HINT_T1, 1)
ORT_AIE_ONE_ROW(OneRowBf16T2, _MM_HINT_T2, 1)
ORT_AIE_ONE_ROW(OneRowBf16TwoAhead, _MM_HINT_T1, 2)
ORT_AIE_ONE_ROW(OneRowBf16FourAhead, _MM_HINT_T1, 4)
#undef ORT_AIE_ONE_ROW

void RowsBf16Avx512Bf16(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                        int64_t rows, const BlockLayout& layout, float* y, int64_t ldy) {
  MultiplyRows<_MM_HINT_T1>(blocks, k_blocks, a, sums, rows, layout, y, ldy);
}

void RowsBf16Avx512Bf16Nta(const uint8_t* blocks, int64_t k_blocks, const float* a,
                           const float* sums, int64_t rows, const BlockLayout& layout, float* y,
                           int64_t ldy) {
  MultiplyRows<_MM_HINT_NTA>(blocks, k_blocks, a, sums, rows, layout, y, ldy);
}

}  // namespace ort_aie::host
