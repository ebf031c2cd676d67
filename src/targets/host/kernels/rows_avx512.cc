// FusedDQP of a few rows with AVX-512 as in avx512.cc.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {

constexpr int64_t kBlockBytes = 5120, kMinsOffset = 512, kCodesOffset = 1024, kHalfBytes = 2048;

using Hint = decltype(_MM_HINT_T0);  // an enum of GCC's, an int of clang's

// Lines of the next block, which comes from memory while this one is multiplied.
template <Hint kHint>
inline void Prefetch(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p + kBlockBytes), kHint);
}

// 16 bfloat16 values -> floats.
inline __m512 Widened(const uint8_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}

// --- rows, some at a time -----------------------------------------------------------------------

template <int R, bool kFirst>
struct Tile {};

// Calls tile(Tile<R, first>, row) for R rows each. Eight at a time spill a few registers, but
// decode a block once; more than eight go in tiles of four to six.
template <int R, bool kFirst, typename F>
inline void OneTile(int64_t count, int64_t row, const F& tile) {
  if constexpr (R > 1) {
    if (count < R) return OneTile<R - 1, kFirst>(count, row, tile);
  }
  tile(Tile<R, kFirst>{}, row);
}

template <typename F>
inline void ForTiles(int64_t rows, const F& tile) {
  if (rows <= 8) return OneTile<8, true>(rows, 0, tile);
  const int64_t tiles = (rows + 5) / 6;
  int64_t row = rows / tiles + (rows % tiles > 0 ? 1 : 0);
  OneTile<6, true>(row, 0, tile);
  for (int64_t i = 1; i < tiles; ++i) {
    const int64_t count = rows / tiles + (i < rows % tiles ? 1 : 0);
    OneTile<6, false>(count, row, tile);
    row += count;
  }
}

// --- int8
// ------------------------------------------------------------------------------------------

// Rows of activations in int8, and where their results go.
struct Int8Rows {
  const int8_t* a;
  const float* scales;
  const int32_t* q_sums;
  int64_t lda;
  float* y;
  int64_t ldy;

  Int8Rows From(int64_t row) const {
    return {a + row * lda,
            scales + row * (lda / 32),
            q_sums + row * (lda / 32),
            lda,
            y + row * ldy,
            ldy};
  }
};

// 64 code bytes are 8 k x 8 pairs of out-features. One byte permute brings the eight k of a pair
// together; of those 64 bits, a multishift picks four k of the even out-feature and four of the odd
// one, so that a register holds 16 out-features in order and every row's activations are the same
// for all lanes.
alignas(64) constexpr uint8_t kOrder[64] = {
    0, 8,  16, 24, 32, 40, 48, 56, 1, 9,  17, 25, 33, 41, 49, 57,  //
    2, 10, 18, 26, 34, 42, 50, 58, 3, 11, 19, 27, 35, 43, 51, 59,  //
    4, 12, 20, 28, 36, 44, 52, 60, 5, 13, 21, 29, 37, 45, 53, 61,  //
    6, 14, 22, 30, 38, 46, 54, 62, 7, 15, 23, 31, 39, 47, 55, 63};

// R rows by one block, added to y. The operations on a result, and their order, are those of one
// row alone (FusedDqpInt8Blocks in avx512.cc): its value does not depend on its company.
template <int R, bool kSymmetric, bool kPrefetch, Hint kHint>
inline void Int8Block(const uint8_t* block, const Int8Rows& rows) {
  const __m512i order = _mm512_load_si512(kOrder);
  const __m512i first_four = _mm512_set1_epi64(0x1c140c0418100800);
  const __m512i last_four = _mm512_set1_epi64(0x3c342c2438302820);
  const __m512i nibble = _mm512_set1_epi8(15);
  __m512 sums[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    sums[r][0] = _mm512_loadu_ps(rows.y + r * rows.ldy);
    sums[r][1] = _mm512_loadu_ps(rows.y + r * rows.ldy + 16);
  }
  for (int g = 0; g < 8; ++g) {
    const uint8_t* codes = block + kCodesOffset + g * 256;
    if (kPrefetch) Prefetch<kHint>(block + g * 64);
    if (kPrefetch && !kSymmetric) Prefetch<kHint>(block + kMinsOffset + g * 64);
    __m512i dots[R][2];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      dots[r][0] = dots[r][1] = kSymmetric
                                    ? _mm512_set1_epi32(-8 * rows.q_sums[r * (rows.lda / 32) + g])
                                    : _mm512_setzero_si512();
    }
#pragma GCC unroll 4
    for (int k = 0; k < 32; k += 8) {
      if (kPrefetch) Prefetch<kHint>(codes + 8 * k);
      if (kPrefetch) Prefetch<kHint>(codes + kHalfBytes + 8 * k);
      const __m512i low = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(codes + 8 * k));
      const __m512i high =
          _mm512_permutexvar_epi8(order, _mm512_loadu_si512(codes + kHalfBytes + 8 * k));
#pragma GCC unroll 2
      for (int four = 0; four < 2; ++four) {
        const __m512i pick = four == 0 ? first_four : last_four;
        const __m512i w0 = _mm512_and_si512(_mm512_multishift_epi64_epi8(pick, low), nibble);
        const __m512i w1 = _mm512_and_si512(_mm512_multishift_epi64_epi8(pick, high), nibble);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          int32_t activations;
          __builtin_memcpy(&activations, rows.a + r * rows.lda + g * 32 + k + 4 * four, 4);
          dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], w0, _mm512_set1_epi32(activations));
          dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], w1, _mm512_set1_epi32(activations));
        }
      }
    }
    const __m512 scale0 = Widened(block + g * 64), scale1 = Widened(block + g * 64 + 32);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const float scale = rows.scales[r * (rows.lda / 32) + g];
      const __m512 factor = _mm512_set1_ps(scale);
      sums[r][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][0]), scale0 * factor, sums[r][0]);
      sums[r][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[r][1]), scale1 * factor, sums[r][1]);
    }
    if (!kSymmetric) {
      const __m512 min0 = Widened(block + kMinsOffset + g * 64);
      const __m512 min1 = Widened(block + kMinsOffset + g * 64 + 32);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const int64_t group = r * (rows.lda / 32) + g;
        const __m512 sum = _mm512_set1_ps(rows.scales[group] * (float)rows.q_sums[group]);
        sums[r][0] = _mm512_fmadd_ps(min0, sum, sums[r][0]);
        sums[r][1] = _mm512_fmadd_ps(min1, sum, sums[r][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    _mm512_storeu_ps(rows.y + r * rows.ldy, sums[r][0]);
    _mm512_storeu_ps(rows.y + r * rows.ldy + 16, sums[r][1]);
  }
}

// All rows by one block. The first tile fetches the next one.
template <bool kSymmetric, Hint kHint>
inline void Int8Tiles(const uint8_t* block, const Int8Rows& rows, int64_t count) {
  const auto tile = [&]<int R, bool kPrefetch>(Tile<R, kPrefetch>, int64_t row) {
    Int8Block<R, kSymmetric, kPrefetch, kHint>(block, rows.From(row));
  };
  ForTiles(count, tile);
}

template <Hint kHint, bool kSymmetric>
void MultiplyInt8Blocks(const uint8_t* blocks, int64_t k_blocks, const Int8Rows& rows,
                        int64_t count) {
  for (int64_t r = 0; r < count; ++r) {
    _mm512_storeu_ps(rows.y + r * rows.ldy, _mm512_setzero_ps());
    _mm512_storeu_ps(rows.y + r * rows.ldy + 16, _mm512_setzero_ps());
  }
  Int8Rows at = rows;
  for (int64_t b = 0; b < k_blocks; ++b, blocks += kBlockBytes) {
    Int8Tiles<kSymmetric, kHint>(blocks, at, count);
    at.a += 256;
    at.scales += 8;
    at.q_sums += 8;
  }
}

template <Hint kHint, bool kReadMinima>
void MultiplyInt8(const uint8_t* blocks, int64_t k_blocks, const int8_t* a, const float* scales,
                  const int32_t* q_sums, int64_t rows, bool symmetric, float* y, int64_t ldy) {
  const Int8Rows all{a, scales, q_sums, k_blocks * 256, y, ldy};
  (symmetric && !kReadMinima ? MultiplyInt8Blocks<kHint, true>
                             : MultiplyInt8Blocks<kHint, false>)(blocks, k_blocks, all, rows);
}

}  // namespace

// Variants as those of one row, whose results they repeat. Up to 64 rows were measured on an AMD
// EPYC (Zen 5), where GEMM is level at 64; elsewhere nobody has.
extern const RowsInt8 kAvx512RowsInt8, kAvx512NtaRowsInt8, kAvx512T1MinimaRowsInt8;
constinit const RowsInt8 kAvx512RowsInt8 = {MultiplyInt8<_MM_HINT_T1, false>, 17};
constinit const RowsInt8 kAvx512NtaRowsInt8 = {MultiplyInt8<_MM_HINT_NTA, false>, 48};
constinit const RowsInt8 kAvx512T1MinimaRowsInt8 = {MultiplyInt8<_MM_HINT_T1, true>, 17};

}  // namespace ort_aie::host
