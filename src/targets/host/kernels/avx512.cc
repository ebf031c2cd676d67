// AVX-512 as in Ice Lake, Zen 4 and later: F, BW, DQ, VL, VNNI, VBMI.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_VECTOR_BYTES 64
#define ORT_AIE_DPBUSD(acc, w, a) \
  (vi) _mm512_dpbusd_epi32((__m512i)(acc), (__m512i)(w), (__m512i)(a))

namespace ort_aie::host {
namespace {

#include "targets/host/kernels/generic/kernels.inc"

using Hint = decltype(_MM_HINT_T0);  // an enum in GCC, an int in clang

#include "targets/host/kernels/rows_avx512_blocks.inc"

// Blocks are read once and in order, and fetched some bytes ahead. The best cache level to fetch
// into, and how far ahead, depend on the CPU: choice.cc has the variants and the rules. Always
// inlined, as PrefetchGroup is.
template <Hint kHint>
__attribute__((always_inline)) inline void Prefetch(const uint8_t* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), kHint);
}

// One k at a time: 16 bytes are the codes of 32 out-features. A table of the 16 code values turns
// nibbles into floats: the permute reads only the low four bits of its index.
template <Hint kHint, bool kSymmetric>
void FusedDqpBf16Blocks(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                        const BlockLayout& layout, int64_t ahead, float* y) {
  const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512 even = _mm512_setzero_ps(), odd = even;
  for (int64_t b = 0; b < k_blocks; ++b, blocks += layout.bytes, a += 256, sums += 8) {
    for (int g = 0; g < 8; ++g) {
      const uint8_t* codes = blocks + layout.codes + g * 256;
      Prefetch<kHint>(ScalesAt(blocks, layout, g) + ahead);
      if (!kSymmetric) Prefetch<kHint>(MinimaAt(blocks, layout, g) + ahead);
      __m512 e[4] = {}, o[4] = {};
      for (int k = 0; k < 32; k += 4) {
        if (k % 8 == 0) {
          Prefetch<kHint>(codes + ahead + 8 * k);
          Prefetch<kHint>(codes + ahead + 8 * k + kHalfBytes);
        }
        for (int i = 0; i < 4; ++i) {
          __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + 8 * (k + i)));
          bytes = _mm_castps_si128(
              _mm_loadh_pi(_mm_castsi128_ps(bytes),
                           reinterpret_cast<const __m64*>(codes + kHalfBytes + 8 * (k + i))));
          const __m512i x = _mm512_cvtepu8_epi32(bytes);
          const __m512 activation = _mm512_set1_ps(a[g * 32 + k + i]);
          e[i] = _mm512_fmadd_ps(_mm512_permutexvar_ps(x, table), activation, e[i]);
          o[i] = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_srli_epi32(x, 4), table), activation,
                                 o[i]);
        }
      }
      const __m512i scale = _mm512_loadu_si512(ScalesAt(blocks, layout, g));
      const __m512 sum = _mm512_set1_ps(sums[g]);
      __m512 even_dot = (e[0] + e[1]) + (e[2] + e[3]), odd_dot = (o[0] + o[1]) + (o[2] + o[3]);
      if (kSymmetric) {
        even_dot -= 8.0f * sum;
        odd_dot -= 8.0f * sum;
      }
      even = _mm512_fmadd_ps(even_dot, Even(scale), even);
      odd = _mm512_fmadd_ps(odd_dot, Odd(scale), odd);
      if (!kSymmetric) {
        const __m512i min = _mm512_loadu_si512(MinimaAt(blocks, layout, g));
        even = _mm512_fmadd_ps(Even(min), sum, even);
        odd = _mm512_fmadd_ps(Odd(min), sum, odd);
      }
    }
  }
  StoreInterleaved32(y, even, odd);
}

template <Hint kHint, int kAhead>
void FusedDqpBf16Avx512(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                        const BlockLayout& layout, float* y) {
  (layout.symmetric ? FusedDqpBf16Blocks<kHint, true>
                    : FusedDqpBf16Blocks<kHint, false>)(blocks, k_blocks, a, sums, layout,
                                                        kAhead * layout.bytes, y);
}

// 64 code bytes are 8 k x 8 pairs of out-features. One byte permute brings four k of a pair side by
// side, as dpbusd needs them: k..k+3 in the low half, k+4..k+7 in the high half.
template <Hint kHint, int kAhead, bool kSymmetric>
void FusedDqpInt8Blocks(const uint8_t* blocks, int64_t k_blocks, const int8_t* a,
                        const float* scales, const int32_t* q_sums, const BlockLayout& layout,
                        float* y) {
  alignas(64) static constexpr uint8_t kOrder[64] = {
      0,  8,  16, 24, 1,  9,  17, 25, 2,  10, 18, 26, 3,  11, 19, 27,  //
      4,  12, 20, 28, 5,  13, 21, 29, 6,  14, 22, 30, 7,  15, 23, 31,  //
      32, 40, 48, 56, 33, 41, 49, 57, 34, 42, 50, 58, 35, 43, 51, 59,  //
      36, 44, 52, 60, 37, 45, 53, 61, 38, 46, 54, 62, 39, 47, 55, 63};
  const __m512i order = _mm512_load_si512(kOrder);
  const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const __m512i nibble = _mm512_set1_epi8(15);
  const int64_t ahead = kAhead * layout.bytes;
  __m512 even = _mm512_setzero_ps(), odd = even;
  for (int64_t b = 0; b < k_blocks;
       ++b, blocks += layout.bytes, a += 256, scales += 8, q_sums += 8) {
    if (kAhead == 0) ReadInOrder(blocks, layout.bytes);
    for (int g = 0; g < 8; ++g) {
      const uint8_t* codes = blocks + layout.codes + g * 256;
      if (kAhead > 0) Prefetch<kHint>(ScalesAt(blocks, layout, g) + ahead);
      if (kAhead > 0 && !kSymmetric) Prefetch<kHint>(MinimaAt(blocks, layout, g) + ahead);
      __m512i e[2] = {}, o[2] = {};
      const __m512i group =
          _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a + g * 32)));
      for (int k = 0; k < 32; k += 8) {
        const __m512i activations =
            _mm512_permutexvar_epi32(_mm512_add_epi32(spread, _mm512_set1_epi32(k / 4)), group);
        for (int half = 0; half < 2; ++half) {
          const uint8_t* source = codes + half * kHalfBytes + 8 * k;
          if (kAhead > 0) Prefetch<kHint>(source + ahead);
          const __m512i x = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(source));
          e[half] = _mm512_dpbusd_epi32(e[half], _mm512_and_si512(x, nibble), activations);
          o[half] = _mm512_dpbusd_epi32(o[half], _mm512_and_si512(_mm512_srli_epi16(x, 4), nibble),
                                        activations);
        }
      }
      // Low and high halves hold the same out-features: add them, with half 0 of the block below
      // half 1.
      __m512i even_dot = _mm512_add_epi32(_mm512_shuffle_i64x2(e[0], e[1], 0x44),
                                          _mm512_shuffle_i64x2(e[0], e[1], 0xee));
      __m512i odd_dot = _mm512_add_epi32(_mm512_shuffle_i64x2(o[0], o[1], 0x44),
                                         _mm512_shuffle_i64x2(o[0], o[1], 0xee));
      if (kSymmetric) {
        const __m512i eights = _mm512_set1_epi32(8 * q_sums[g]);
        even_dot = _mm512_sub_epi32(even_dot, eights);
        odd_dot = _mm512_sub_epi32(odd_dot, eights);
      }
      const __m512i scale = _mm512_loadu_si512(ScalesAt(blocks, layout, g));
      const __m512 factor = _mm512_set1_ps(scales[g]);
      even = _mm512_fmadd_ps(_mm512_cvtepi32_ps(even_dot), Even(scale) * factor, even);
      odd = _mm512_fmadd_ps(_mm512_cvtepi32_ps(odd_dot), Odd(scale) * factor, odd);
      if (!kSymmetric) {
        const __m512i min = _mm512_loadu_si512(MinimaAt(blocks, layout, g));
        const __m512 sum = _mm512_set1_ps(scales[g] * (float)q_sums[g]);
        even = _mm512_fmadd_ps(Even(min), sum, even);
        odd = _mm512_fmadd_ps(Odd(min), sum, odd);
      }
    }
  }
  StoreInterleaved32(y, even, odd);
}

template <Hint kHint, int kAhead>
void FusedDqpInt8Avx512(const uint8_t* blocks, int64_t k_blocks, const int8_t* a,
                        const float* scales, const int32_t* q_sums, const BlockLayout& layout,
                        float* y) {
  (layout.symmetric
       ? FusedDqpInt8Blocks<kHint, kAhead, true>
       : FusedDqpInt8Blocks<kHint, kAhead, false>)(blocks, k_blocks, a, scales, q_sums, layout, y);
}

#include "targets/host/kernels/attention_avx512.inc"
#include "targets/host/kernels/attention_avx512_int8.inc"
#include "targets/host/kernels/rows_avx512.inc"

// 64 code bytes -> 8 k x 16 out-features of the panel [64][32][4] of UnpackBlock.
void UnpackBlockAvx512(const uint8_t* block, const BlockLayout& layout, int8_t* codes,
                       float* scales, float* mins, int32_t* offsets) {
  UnpackScales(block, layout, scales, mins);
  alignas(64) uint8_t order_bytes[64];
  for (int i = 0; i < 64; ++i) {  // output byte: out-feature i / 4, k i % 4
    order_bytes[i] = (uint8_t)((i % 4) * 8 + i / 8);
  }
  const __m512i order = _mm512_load_si512(order_bytes);
  const __m512i next = _mm512_add_epi8(order, _mm512_set1_epi8(32));
  const __m512i nibble = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
  const __m512i factor = _mm512_set1_epi8(-128);  // 128, unsigned
  for (int half = 0; half < 2; ++half) {
    const uint8_t* source = block + layout.codes + half * kHalfBytes;
    for (int g = 0; g < 8; ++g) {
      __m512i sum = _mm512_setzero_si512();
      for (int k = g * 32; k < g * 32 + 32; k += 8) {
        const __m512i x = _mm512_loadu_si512(source + 8 * k);
        int8_t* out = codes + (k / 4) * 128 + half * 64;
        for (int i = 0; i < 2; ++i) {
          __m512i panel = _mm512_permutexvar_epi8(i == 0 ? order : next, x);
          // Four bytes of an even out-feature, four of an odd one, whose codes are high nibbles.
          panel = _mm512_mask_srli_epi32(panel, 0xaaaa, panel, 4);
          panel = _mm512_sub_epi8(_mm512_and_si512(panel, nibble), eight);
          _mm512_storeu_si512(out + i * 128, panel);
          sum = _mm512_dpbusd_epi32(sum, factor, panel);
        }
      }
      _mm512_storeu_si512(offsets + g * 32 + half * 16,
                          _mm512_sub_epi32(_mm512_setzero_si512(), sum));
    }
  }
}

// The next Q8NX block. Always inlined, as PrefetchGroup is.
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

// Fetches so many blocks ahead for one row; 0: reads those of int8 in order.
template <Hint kHint, int kAhead = 1>
constexpr Kernels Avx512Kernels() {
  Kernels kernels = GenericKernels("avx512");
  kernels.fused_dqp_bf16 = FusedDqpBf16Avx512 < kHint, kAhead == 0 ? 1 : kAhead > ;
  kernels.fused_dqp_int8 = FusedDqpInt8Avx512<kHint, kAhead>;
  // Each variant for a few rows is large code: one that fetches past the caches, and one for all
  // others.
  constexpr bool kNta = kHint == _MM_HINT_NTA;
  constexpr Hint kRowsHint = kNta ? kHint : _MM_HINT_T1;
  kernels.rows_int8 = RowsInt8Avx512<kRowsHint>;
  kernels.rows_bf16 = RowsBf16Avx512<kRowsHint>;
  // On an AMD EPYC (Zen 5), where GEMM breaks even at about 64 rows of int8.
  kernels.most_rows = {.int8 = 48, .bf16 = 32};
  kernels.unpack_block = UnpackBlockAvx512;
  kernels.scores[kCacheFloat16] = QuadScores<Float16Quads>;
  kernels.scores[kCacheBfloat16] = QuadScores<Bfloat16Quads>;
  kernels.scores[kCacheInt8] = CodeScores;
  kernels.accumulate[kCacheInt8] = CodeAccumulate;
  kernels.scores[kCacheInt4] = QuadScores<Int4Quads>;
  kernels.lookup = kNta ? &kAvx512NtaLookup : &kAvx512Lookup;
  kernels.files = kAvx512Files.kernels;
  // On an Intel Xeon without AMX.
  kernels.bytes = GenericBytes<ByteBlockAhead<kRowsHint>>({.int8 = 38, .bf16 = 192});
  return kernels;
}

consteval Kernels Avx512Bf16Kernels(OneRowBf16* one_row, RowsBf16* rows = RowsBf16Avx512Bf16) {
  Kernels kernels = WithDotProducts(
      Avx512Kernels<_MM_HINT_T1>(), "avx512_bf16",
      {one_row, rows, DequantizeBlockAvx512Bf16, GemmBf16Avx512Bf16, &kAvx512Bf16Attention});
  kernels.files = kAvx512Bf16Files.kernels;
  return kernels;
}

// Tiles break even earlier than the GEMMs above; how early is not measured.
consteval Kernels AmxKernels() {
  Kernels kernels = WithTiles(Avx512Bf16Kernels(OneRowBf16T1), "amx", GemmBf16Amx, kAmxAttention);
  kernels.most_rows = {.int8 = 17, .bf16 = 32};
  kernels.bytes.most_rows = {.int8 = 24, .bf16 = 32};
  kernels.files = kAmxFiles.kernels;
  return kernels;
}

}  // namespace

extern const Kernels kAvx512Kernels, kAvx512NtaKernels, kAvx512T0Kernels, kAvx512T2Kernels;
extern const Kernels kAvx512InOrderKernels, kAvx512TwoAheadKernels, kAvx512FourAheadKernels;
extern const Kernels kAvx512Bf16Kernels, kAvx512Bf16NtaKernels, kAvx512Bf16T0Kernels;
extern const Kernels kAvx512Bf16T2Kernels, kAvx512Bf16TwoAheadKernels, kAvx512Bf16FourAheadKernels;
extern const Kernels kAmxKernels;
constinit const Kernels kAvx512Kernels = Avx512Kernels<_MM_HINT_T1>();
constinit const Kernels kAvx512NtaKernels = Avx512Kernels<_MM_HINT_NTA>();
constinit const Kernels kAvx512T0Kernels = Avx512Kernels<_MM_HINT_T0>();
constinit const Kernels kAvx512T2Kernels = Avx512Kernels<_MM_HINT_T2>();
constinit const Kernels kAvx512InOrderKernels = Avx512Kernels<_MM_HINT_T1, 0>();
constinit const Kernels kAvx512TwoAheadKernels = Avx512Kernels<_MM_HINT_T1, 2>();
constinit const Kernels kAvx512FourAheadKernels = Avx512Kernels<_MM_HINT_T1, 4>();
constinit const Kernels kAvx512Bf16Kernels = Avx512Bf16Kernels(OneRowBf16T1);
constinit const Kernels kAvx512Bf16NtaKernels =
    Avx512Bf16Kernels(OneRowBf16Nta, RowsBf16Avx512Bf16Nta);
constinit const Kernels kAvx512Bf16T0Kernels = Avx512Bf16Kernels(OneRowBf16T0);
constinit const Kernels kAvx512Bf16T2Kernels = Avx512Bf16Kernels(OneRowBf16T2);
constinit const Kernels kAvx512Bf16TwoAheadKernels = Avx512Bf16Kernels(OneRowBf16TwoAhead);
constinit const Kernels kAvx512Bf16FourAheadKernels = Avx512Bf16Kernels(OneRowBf16FourAhead);
constinit const Kernels kAmxKernels = AmxKernels();

}  // namespace ort_aie::host
