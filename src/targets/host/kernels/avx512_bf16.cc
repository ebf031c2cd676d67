// AVX512_BF16 on top of avx512.cc, for the GEMM and the attention of prompts, which are faster with
// it.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {

#include "targets/host/kernels/generic/blocks.inc"

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

// --- attention -----------------------------------------------------------------------------------

// A cache in memory: a Unit holds `kInUnit` elements.
template <CacheType kType>
struct Cache {
  typedef uint16_t Unit;
  static constexpr int kInUnit = 1;
};
template <>
struct Cache<kCacheInt8> {
  typedef int8_t Unit;
  static constexpr int kInUnit = 1;
};
template <>
struct Cache<kCacheInt4> {
  typedef uint8_t Unit;
  static constexpr int kInUnit = 2;
};

// 16 elements as float: those that the mask selects, and zeros elsewhere.
template <CacheType kType>
inline __m512 LoadFloat(const typename Cache<kType>::Unit* p, __mmask16 mask) {
  if constexpr (kType == kCacheInt8) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(mask, p)));
  } else if constexpr (kType == kCacheInt4) {
    // The mask selects 0, 8 or 16 elements, because dim is a multiple of 8. Each byte is widened to
    // 16 bits and or-ed with itself shifted by 4 bits: its halves are then in bytes of their own.
    const auto bytes = (__mmask16)((mask & 0x0f) | (mask >> 4 & 0xf0));
    const __m128i pairs = _mm_cvtepu8_epi16(_mm_maskz_loadu_epi8(bytes, p));
    const __m128i halves =
        _mm_and_si128(_mm_or_si128(pairs, _mm_slli_epi16(pairs, 4)), _mm_set1_epi8(15));
    return _mm512_maskz_cvtepi32_ps(
        mask, _mm512_sub_epi32(_mm512_cvtepu8_epi32(halves), _mm512_set1_epi32(8)));
  } else {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p));
  }
}

// 16 + 16 elements of a cache as 32 bfloat16.
template <CacheType kType>
inline __m512i Load32(const typename Cache<kType>::Unit* low, __mmask16 low_mask,
                      const typename Cache<kType>::Unit* high, __mmask16 high_mask) {
  if constexpr (kType == kCacheBfloat16) {
    const __m256i a = _mm256_maskz_loadu_epi16(low_mask, low);
    const __m256i b = _mm256_maskz_loadu_epi16(high_mask, high);
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  } else {
    return (__m512i)_mm512_cvtne2ps_pbh(LoadFloat<kType>(high, high_mask),
                                        LoadFloat<kType>(low, low_mask));
  }
}

// The first n of 16 elements; n may be negative or more than 16.
inline __mmask16 First(int64_t n) {
  return (__mmask16)(n >= 16 ? 0xffff : n <= 0 ? 0 : (1 << n) - 1);
}

// 16 rows of 16 lanes: lane i of row j becomes lane j of row i. The loops must be unrolled early,
// or GCC 12 keeps the rows in memory.
inline void Transpose(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  // Quarter q of x[4 g + i] has lane 4 q + i of rows 4 g to 4 g + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i a = _mm512_shuffle_i32x4(x[i], x[i + 4], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(x[i], x[i + 4], 0xdd);
    const __m512i c = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0x88);
    const __m512i d = _mm512_shuffle_i32x4(x[i + 8], x[i + 12], 0xdd);
    x[i] = _mm512_shuffle_i32x4(a, c, 0x88);
    x[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd);
    x[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
}

// A cache is read in order, and processed faster than memory delivers it: what follows is
// prefetched.
inline void PrefetchAhead(const void* p, int64_t bytes) {
  const char* ahead = static_cast<const char*>(p) + 8192;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i);
}

// 16 keys x 32 dims; kWhole means that all of them exist.
template <CacheType kType, bool kWhole>
inline void PackKeysTile(const typename Cache<kType>::Unit* k, int64_t keys, int64_t dim,
                         int64_t dims, uint16_t* panel) {
  constexpr int kInUnit = Cache<kType>::kInUnit;
  const __mmask16 low = kWhole ? 0xffff : First(dims), high = kWhole ? 0xffff : First(dims - 16);
  __m512i pairs[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const auto* row = k + i * dim / kInUnit;
    pairs[i] = kWhole || i < keys ? Load32<kType>(row, low, row + 16 / kInUnit, high)
                                  : _mm512_setzero_si512();
  }
  Transpose(pairs);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (kWhole || 2 * i < dims) _mm512_storeu_si512(panel + i * 64, pairs[i]);
  }
}

template <CacheType kType>
void PackKeys(const void* cache, int64_t keys, int64_t dim, uint16_t* panels) {
  const auto* k = static_cast<const typename Cache<kType>::Unit*>(cache);
  constexpr int kInUnit = Cache<kType>::kInUnit;
  for (int64_t j = 0; j < keys; j += 32, panels += dim * 32) {
    PrefetchAhead(k + j * dim / kInUnit, 32 * dim / kInUnit * (int64_t)sizeof(*k));
    for (int64_t half = 0; half < 32; half += 16) {
      const int64_t left = keys - j - half;
      for (int64_t d = 0; d < dim; d += 32) {
        const auto* from = k + ((j + half) * dim + d) / kInUnit;
        uint16_t* to = panels + d * 32 + half * 2;
        if (left >= 16 && dim - d >= 32) {
          PackKeysTile<kType, true>(from, left, dim, dim - d, to);
        } else {
          PackKeysTile<kType, false>(from, left, dim, dim - d, to);
        }
      }
    }
  }
}

template <CacheType kType>
void PackValues(const void* cache, int64_t keys, int64_t dim, uint16_t* pairs) {
  const auto* v = static_cast<const typename Cache<kType>::Unit*>(cache);
  constexpr int kInUnit = Cache<kType>::kInUnit;
  alignas(64) uint16_t order_lanes[32];
  for (int i = 0; i < 32; ++i) order_lanes[i] = (uint16_t)(i / 2 + i % 2 * 16);
  const __m512i order = _mm512_load_si512(order_lanes);
  const int64_t padded = (keys + kScoreLanes - 1) / kScoreLanes * kScoreLanes;
  for (int64_t j = 0; j < padded; j += 2, pairs += 2 * dim) {
    const auto* row = v + j * dim / kInUnit;
    const auto* next = row + dim / kInUnit;
    PrefetchAhead(row, 2 * dim / kInUnit * (int64_t)sizeof(*v));
    int64_t d = 0;
    if (j + 2 <= keys) {
      for (; d + 16 <= dim; d += 16) {
        const __m512i two = Load32<kType>(row + d / kInUnit, 0xffff, next + d / kInUnit, 0xffff);
        _mm512_storeu_si512(pairs + 2 * d, _mm512_permutexvar_epi16(order, two));
      }
    }
    for (; d < dim; d += 16) {
      const __mmask16 lanes = First(dim - d);
      const __m512i two = Load32<kType>(row + d / kInUnit, j < keys ? lanes : 0, next + d / kInUnit,
                                        j + 1 < keys ? lanes : 0);
      _mm512_mask_storeu_epi32(pairs + 2 * d, lanes, _mm512_permutexvar_epi16(order, two));
    }
  }
}

// 32 columns of a product of many rows, of which the masks select some; as many rows at a time as
// registers hold. a (rows, 2 * count), panel: count rows of pairs, stride apart.
struct Columns {
  const uint16_t* panel;
  int64_t stride, count;
  __mmask16 low, high;
};

// y (R, 32) = factor * (a . panel), or factor[row] * y + a . panel. GCC 12 keeps accumulators in
// memory unless it unrolls the loops over rows before it analyses the arrays. Without the pragmas
// for this, the function takes twice as long.
template <int R, bool kAccumulate>
inline void MultiplyTile(const uint16_t* a, int64_t lda, const Columns& columns,
                         const float* factor, float* y, int64_t ldy) {
  const __mmask16 low_mask = columns.low, high_mask = columns.high;
  __m512 low[R] = {}, high[R] = {};
  if (kAccumulate) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      low[r] = _mm512_maskz_loadu_ps(low_mask, y + r * ldy) * factor[r];
      high[r] = _mm512_maskz_loadu_ps(high_mask, y + r * ldy + 16) * factor[r];
    }
  }
  const uint16_t* panel = columns.panel;
  for (int64_t p = 0; p < columns.count; ++p, panel += columns.stride) {
    const __m512bh w0 = (__m512bh)_mm512_maskz_loadu_epi32(low_mask, panel);
    const __m512bh w1 = (__m512bh)_mm512_maskz_loadu_epi32(high_mask, panel + 32);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      int32_t pair;
      __builtin_memcpy(&pair, a + r * lda + 2 * p, 4);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
      low[r] = _mm512_dpbf16_ps(low[r], x, w0);
      high[r] = _mm512_dpbf16_ps(high[r], x, w1);
    }
  }
  const __m512 scale = _mm512_set1_ps(kAccumulate ? 1.0f : *factor);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    _mm512_mask_storeu_ps(y + r * ldy, low_mask, low[r] * scale);
    _mm512_mask_storeu_ps(y + r * ldy + 16, high_mask, high[r] * scale);
  }
}

template <bool kAccumulate>
inline void Multiply(const uint16_t* a, int64_t lda, int64_t rows, const Columns& columns,
                     const float* factor, float* y, int64_t ldy) {
  const auto factors = [factor](int64_t r) { return kAccumulate ? factor + r : factor; };
  int64_t r = 0;
  // 16 rows are 8 and 8: a tile of 4 would wait for its own sums.
  for (; r + 12 <= rows && r + 16 != rows; r += 12) {
    MultiplyTile<12, kAccumulate>(a + r * lda, lda, columns, factors(r), y + r * ldy, ldy);
  }
  for (; r + 8 <= rows; r += 8) {
    MultiplyTile<8, kAccumulate>(a + r * lda, lda, columns, factors(r), y + r * ldy, ldy);
  }
  for (; r + 4 <= rows; r += 4) {
    MultiplyTile<4, kAccumulate>(a + r * lda, lda, columns, factors(r), y + r * ldy, ldy);
  }
  for (; r < rows; ++r) {
    MultiplyTile<1, kAccumulate>(a + r * lda, lda, columns, factors(r), y + r * ldy, ldy);
  }
}

void Scores(const uint16_t* q, int64_t rows, int64_t dim, const uint16_t* panels, int64_t keys,
            float scale, float* s) {
  for (int64_t j = 0; j < keys; j += 32, panels += dim * 32) {
    Multiply<false>(q, dim, rows, {panels, 64, dim / 2, 0xffff, 0xffff}, &scale, s + j, kChunk);
  }
}

// exp(x) = 2^floor(t) * p(t - floor(t)), t = x log2(e). p is the polynomial of degree 3 with the
// smallest relative error, 7.5e-5 = 2^-13.7, which is small compared with the rounding to bfloat16,
// 2^-8.
inline __m512 Exp(__m512 x) {
  const __m512 t = x * 1.44269504f;
  const __m512 r = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.0780245215f), r, _mm512_set1_ps(0.226067156f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.695833564f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.999925196f));
  return _mm512_scalef_ps(p, t);
}

void Softmax(const float* s, int64_t rows, int64_t keys, float* max, float* sum, float* correction,
             uint16_t* f) {
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  for (int64_t r = 0; r < rows; ++r, s += kChunk, f += kChunk) {
    __m512 largest = _mm512_set1_ps(max[r]);
    for (int64_t j = 0; j < keys; j += 16) {
      largest = _mm512_max_ps(_mm512_loadu_ps(s + j), largest);  // the second operand if one is NaN
    }
    const float now = _mm512_reduce_max_ps(largest);
    // If all are -infinity, any finite shift makes zeros.
    const float shift = now == -__builtin_inff() ? 0.0f : now;
    __m512 total = _mm512_setzero_ps();
    for (int64_t j = 0; j < keys; j += 32) {
      const __m512 low = Exp(_mm512_loadu_ps(s + j) - shift);
      const __m512 high = Exp(_mm512_loadu_ps(s + j + 16) - shift);
      const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
      _mm512_storeu_si512(f + j, (__m512i)rounded);
      total = _mm512_dpbf16_ps(total, rounded, ones);
    }
    correction[r] = _mm512_cvtss_f32(Exp(_mm512_set1_ps(max[r] - shift)));
    sum[r] = correction[r] * sum[r] + _mm512_reduce_add_ps(total);
    max[r] = now;
  }
}

void Accumulate(const uint16_t* f, int64_t rows, const uint16_t* pairs, int64_t keys, int64_t dim,
                const float* correction, float* y) {
  for (int64_t d = 0; d < dim; d += 32) {
    Multiply<true>(f, kChunk, rows,
                   {pairs + 2 * d, 2 * dim, (keys + 1) / 2, First(dim - d), First(dim - d - 16)},
                   correction, y + d, dim);
  }
}

constexpr Bf16Attention kWithDotProducts = {
    {nullptr, PackKeys<kCacheFloat16>, PackKeys<kCacheBfloat16>, PackKeys<kCacheInt8>,
     PackKeys<kCacheInt4>},
    {nullptr, PackValues<kCacheFloat16>, PackValues<kCacheBfloat16>, PackValues<kCacheInt8>,
     PackValues<kCacheInt4>},
    Scores,
    Softmax,
    Accumulate,
    24,
};

}  // namespace

extern const Bf16Attention kAvx512Bf16Attention, kAmxAttention;
constinit const Bf16Attention kAvx512Bf16Attention = kWithDotProducts;
constinit const Bf16Attention kAmxAttention = [] {
  Bf16Attention attention = kWithDotProducts;
  attention.scores = ScoresAmx;
  attention.accumulate = AccumulateAmx;
  attention.row_block = kTileRowBlock;
  return attention;
}();

// 64 code bytes are 8 k x 8 pairs of out-features. The lanes of a vector are (out-feature, k) of 8
// out-features and two k. This is the order of a panel, so that one conversion rounds two vectors
// into it.
void DequantizeBlockAvx512Bf16(const uint8_t* block, const BlockLayout& layout, uint16_t* panel) {
  const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i feature = _mm512_srli_epi32(lane, 1), next = _mm512_set1_epi32(8);
  // The index of a lane's byte: 8 bytes per k % 2, and one byte for two out-features.
  const __m512i byte =
      _mm512_add_epi32(_mm512_slli_epi32(_mm512_and_epi32(lane, _mm512_set1_epi32(1)), 3),
                       _mm512_srli_epi32(lane, 2));
  const __mmask16 odd = 0xcccc;  // out-features whose code is a high nibble
  const auto widen = [](const uint8_t* sixteen) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sixteen));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  };
  for (int64_t g = 0; g < 8; ++g) {
    for (int64_t half = 0; half < 2; ++half) {
      const __m512 scales = widen(ScalesAt(block, layout, g) + half * 32);
      const __m512 mins =
          layout.symmetric ? -8.0f * scales : widen(MinimaAt(block, layout, g) + half * 32);
      const __m512 scale[2] = {_mm512_permutexvar_ps(feature, scales),
                               _mm512_permutexvar_ps(_mm512_add_epi32(feature, next), scales)};
      const __m512 min[2] = {_mm512_permutexvar_ps(feature, mins),
                             _mm512_permutexvar_ps(_mm512_add_epi32(feature, next), mins)};
      const uint8_t* codes = block + layout.codes + half * kHalfBytes + g * 256;
      uint16_t* out = panel + g * 16 * 64 + half * 32;
      for (int64_t k = 0; k < 32; k += 8, codes += 64) {
        const __m512i x = _mm512_loadu_si512(codes);
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; ++pair, out += 64) {
          __m512 weights[2];
#pragma GCC unroll 2
          for (int i = 0; i < 2; ++i) {
            __m512i code = _mm512_permutexvar_epi8(
                _mm512_add_epi32(byte, _mm512_set1_epi32(16 * pair + 4 * i)), x);
            code = _mm512_mask_srli_epi32(code, odd, code, 4);
            // The permute reads only the low four bits of its index.
            weights[i] = _mm512_fmadd_ps(_mm512_permutexvar_ps(code, values), scale[i], min[i]);
          }
          _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(weights[1], weights[0]));
        }
      }
    }
  }
}

void GemmBf16Avx512Bf16(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                        int64_t k_pairs, float* y, int64_t ldy) {
  int64_t r = 0;
  for (; r + 12 <= rows; r += 12) Tile<12>(a + r * lda, lda, panel, k_pairs, y + r * ldy, ldy);
  for (; r + 4 <= rows; r += 4) Tile<4>(a + r * lda, lda, panel, k_pairs, y + r * ldy, ldy);
  for (; r < rows; ++r) Tile<1>(a + r * lda, lda, panel, k_pairs, y + r * ldy, ldy);
}

}  // namespace ort_aie::host
