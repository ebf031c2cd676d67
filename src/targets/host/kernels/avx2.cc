// AVX2, FMA and F16C.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_VECTOR_BYTES 32
#define ORT_AIE_MADDUBS(w, a) (vh) _mm256_maddubs_epi16((__m256i)(w), (__m256i)(a))
#define ORT_AIE_ADD_PAIRS(x) (vi) _mm256_madd_epi16((__m256i)(x), _mm256_set1_epi16(1))

namespace ort_aie::host {
namespace {

#include "targets/host/kernels/generic/kernels.inc"

// Rows at a time: two sums of each are in registers.
constexpr int kAvx2Rows = 6;

// Even or odd out-features of half a block, 32 k: 16-bit sums of at most 8 * 2 * 15 * 127.
inline vli AddLanes(__m256i sums) {
  return (vli)_mm256_add_epi32(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(sums)),
                               _mm256_cvtepi16_epi32(_mm256_extracti128_si256(sums, 1)));
}

using Hint = decltype(_MM_HINT_T0);  // an enum in GCC, an int in clang

// Fetches an eighth of a later block, 9 or 10 lines of 520 to 640 bytes, while group g of this one
// is multiplied: in their order, with minima that symmetric weights do not need. Fetching only what
// is read, group by group from four places, reached 67 % of a plain read where this reaches 77 to
// 93 % (`ort-aie tune` on Zen 3, int8). Always inlined: GCC 12 treats a function that only
// prefetches as one without an effect.
template <Hint kHint>
__attribute__((always_inline)) inline void FetchEighth(const uint8_t* block,
                                                       const BlockLayout& layout, int64_t g) {
  const char* lines = reinterpret_cast<const char*>(block) + g * (layout.bytes / 8);
  for (int line = 0; line < 576; line += 64) _mm_prefetch(lines + line, kHint);
  if (layout.bytes > 8 * 576) _mm_prefetch(lines + 576, kHint);
}

// 32 code bytes are 4 k x 8 pairs of out-features. Interleaving two k gives 16-bit lanes of the
// bytes that maddubs multiplies and adds: k, k+1 in the low half, k+2, k+3 in the high half.
inline __m256i Interleaved(const uint8_t* codes) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
  return _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)), order);
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

// Four k of eight pairs of out-features, 32 code bytes: those of the even out-features, then those
// of the odd ones, the four k of each side by side.
struct Quads {
  __m256i even, odd;
};
inline Quads LoadQuads(const uint8_t* codes) {
  const __m256i nibble = _mm256_set1_epi8(15);
  // Two k of each pair in either half; then all four together.
  const __m256i x = Interleaved(codes);
  const __m256i swapped = _mm256_permute2x128_si256(x, x, 1);
  const __m256i pairs = _mm256_blend_epi32(_mm256_unpacklo_epi16(x, swapped),
                                           _mm256_unpackhi_epi16(swapped, x), 0xf0);
  return {_mm256_and_si256(pairs, nibble), _mm256_and_si256(_mm256_srli_epi16(pairs, 4), nibble)};
}

// R rows: codes are decoded once for all of them. Integers are exact and floats in the order of one
// row, so that each result is that of FusedDqpInt8.
template <Hint kHint, int R, bool kSymmetric>
void RowsInt8Tile(const uint8_t* blocks, int64_t k_blocks, const int8_t* a, const float* scales,
                  const int32_t* q_sums, const BlockLayout& layout, float* y, int64_t ldy) {
  const __m256i ones = _mm256_set1_epi16(1);
  const int64_t lda = k_blocks * 256, groups = k_blocks * 8;
  vlf even[2][R] = {}, odd[2][R] = {};
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* block = blocks + g / 8 * layout.bytes;
    const int64_t in_block = g % 8;
    FetchEighth<kHint>(block + layout.bytes, layout, in_block);
    for (int half = 0; half < 2; ++half) {
      const uint8_t* codes = block + layout.codes + half * kHalfBytes + in_block * 256;
      __m256i e[R] = {}, o[R] = {};  // 16-bit sums of at most 8 * 2 * 15 * 127
      for (int k = 0; k < 32; k += 4) {
        const Quads quads = LoadQuads(codes + 8 * k);
        for (int r = 0; r < R; ++r) {
          int32_t four;
          __builtin_memcpy(&four, a + r * lda + g * 32 + k, 4);
          const __m256i activations = _mm256_set1_epi32(four);
          e[r] = _mm256_add_epi16(e[r], _mm256_maddubs_epi16(quads.even, activations));
          o[r] = _mm256_add_epi16(o[r], _mm256_maddubs_epi16(quads.odd, activations));
        }
      }
      const EvenOdd scale = LoadEvenOdd(ScalesAt(block, layout, in_block) + half * 32);
      const EvenOdd min =
          kSymmetric ? scale : LoadEvenOdd(MinimaAt(block, layout, in_block) + half * 32);
      for (int r = 0; r < R; ++r) {
        const float a_scale = scales[r * groups + g];
        const int32_t q_sum = q_sums[r * groups + g];
        const int32_t offset = kSymmetric ? -8 * q_sum : 0;
        even[half][r] += __builtin_convertvector((vli)_mm256_madd_epi16(e[r], ones) + offset, vlf) *
                         (scale.even * a_scale);
        odd[half][r] += __builtin_convertvector((vli)_mm256_madd_epi16(o[r], ones) + offset, vlf) *
                        (scale.odd * a_scale);
        if (!kSymmetric) {
          const float sum = a_scale * (float)q_sum;
          even[half][r] += min.even * sum;
          odd[half][r] += min.odd * sum;
        }
      }
    }
  }
  for (int half = 0; half < 2; ++half) {
    for (int r = 0; r < R; ++r) {
      StoreInterleaved(y + r * ldy + 16 * half, even[half][r], odd[half][r]);
    }
  }
}

template <Hint kHint, bool kSymmetric>
inline void RowsInt8Blocks(const uint8_t* blocks, int64_t k_blocks, const int8_t* a,
                           const float* scales, const int32_t* q_sums, int64_t rows,
                           const BlockLayout& layout, float* y, int64_t ldy) {
  ForTiles<kAvx2Rows, kAvx2Rows>(rows, [&]<int R, bool kFirst>(Tile<R, kFirst>, int64_t r) {
    RowsInt8Tile<kHint, R, kSymmetric>(blocks, k_blocks, a + r * k_blocks * 256,
                                       scales + r * k_blocks * 8, q_sums + r * k_blocks * 8, layout,
                                       y + r * ldy, ldy);
  });
}

template <Hint kHint>
void RowsInt8Avx2(const uint8_t* blocks, int64_t k_blocks, const int8_t* a, const float* scales,
                  const int32_t* q_sums, int64_t rows, const BlockLayout& layout, float* y,
                  int64_t ldy) {
  (layout.symmetric
       ? RowsInt8Blocks<kHint, true>
       : RowsInt8Blocks<kHint, false>)(blocks, k_blocks, a, scales, q_sums, rows, layout, y, ldy);
}

void UnpackBlockAvx2(const uint8_t* block, const BlockLayout& layout, int8_t* codes, float* scales,
                     float* mins, int32_t* offsets) {
  UnpackScales(block, layout, scales, mins);
  const __m256i ones = _mm256_set1_epi8(1), eight = _mm256_set1_epi8(8);
  const __m256i factor = _mm256_set1_epi16(-128);
  for (int g = 0; g < 8; ++g) {
    for (int half = 0; half < 2; ++half) {
      const uint8_t* source = block + layout.codes + half * kHalfBytes + g * 256;
      int8_t* out = codes + g * 1024 + half * 64;
      __m256i first = {}, second = {};  // sums of two k, at most 8 * 2 * 8
      for (int k = 0; k < 32; k += 4, out += 128) {
        const Quads quads = LoadQuads(source + 8 * k);
        const __m256i even = _mm256_sub_epi8(quads.even, eight);
        const __m256i odd = _mm256_sub_epi8(quads.odd, eight);
        const __m256i low = _mm256_unpacklo_epi32(even, odd);
        const __m256i high = _mm256_unpackhi_epi32(even, odd);
        const __m256i eight_outs = _mm256_permute2x128_si256(low, high, 0x20);
        const __m256i next_outs = _mm256_permute2x128_si256(low, high, 0x31);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), eight_outs);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 32), next_outs);
        first = _mm256_add_epi16(first, _mm256_maddubs_epi16(ones, eight_outs));
        second = _mm256_add_epi16(second, _mm256_maddubs_epi16(ones, next_outs));
      }
      auto* sums = reinterpret_cast<__m256i*>(offsets + g * 32 + half * 16);
      _mm256_storeu_si256(sums, _mm256_madd_epi16(first, factor));
      _mm256_storeu_si256(sums + 1, _mm256_madd_epi16(second, factor));
    }
  }
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

// The next Q8NX block.
template <Hint kHint>
struct ByteBlockAhead {
  __attribute__((always_inline)) static void Fetch(const uint8_t* block, const BlockLayout& layout,
                                                   int g) {
    const char* next = reinterpret_cast<const char*>(block) + layout.bytes;
    for (int line = 0; line < kGroupBytes8; line += 64) {
      _mm_prefetch(next + g * kGroupBytes8 + line, kHint);
    }
    // Of at most 1,280 bytes of scales and zero points.
    const int64_t eighth = (layout.bytes - kScalesOffset8) / 8;
    for (int64_t line = 0; line < eighth; line += 64) {
      _mm_prefetch(next + kScalesOffset8 + g * eighth + line, kHint);
    }
  }
};

// Fetches so many blocks ahead for one row. The kernels for a few rows are large code, and are less
// bound by memory: one variant of them fetches past the caches, another into L1.
template <Hint kHint, int kAhead = 1>
constexpr Kernels Avx2Kernels() {
  Kernels kernels = GenericKernels("avx2");
  kernels.fused_dqp_bf16 = FusedDqpBf16Avx2<kHint, kAhead>;
  kernels.fused_dqp_int8 = FusedDqpInt8<kHint, kAhead>;
  constexpr Hint kRowsHint = kHint == _MM_HINT_NTA ? kHint : _MM_HINT_T0;
  kernels.rows_int8 = RowsInt8Avx2<kRowsHint>;
  kernels.unpack_block = UnpackBlockAvx2;
  kernels.most_rows = {.int8 = 48, .bf16 = 8};
  kernels.lookup = &kAvx2Lookup;
  // For 8 bits on an Intel Xeon, GEMM, which is in bfloat16, takes 1.9 to 3.5 times as long as
  // streamed rows of int8 from 16 to 300 rows, and breaks even with those of bf16 at more than 128.
  kernels.bytes = GenericBytes<ByteBlockAhead<kRowsHint>>({.int8 = 128, .bf16 = 64});
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

}  // namespace ort_aie::host
