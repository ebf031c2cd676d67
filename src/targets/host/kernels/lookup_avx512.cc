// AVX-512 as in avx512.cc. Per instruction: 64 lookups in up to four tables of 16 bytes (vpermb),
// 16 in a table of floats (vpermps), or 32 in two registers of bfloat16 (vpermi2w).
#include <immintrin.h>
#include <stdint.h>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {

#include "targets/host/kernels/generic/lookup.inc"

inline __m512 Even(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline __m512 Odd(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}

// The sums of the 16 even and the 16 odd out-features of a row of blocks.
template <bool kSymmetric>
class Totals {
 public:
  // lookups: (L(0) + 2 L(1)) / 2 of a group.
  void Add(const uint8_t* block, const BlockLayout& layout, int64_t g, __m512 even_lookups,
           __m512 odd_lookups, float group_sum) {
    const __m512 sum = _mm512_set1_ps(group_sum);
    const __m512 offset = _mm512_mul_ps(sum, _mm512_set1_ps(kSymmetric ? -0.5f : 1.5f));
    const __m512i scale = _mm512_loadu_si512(ScalesAt(block, layout, g));
    even_ = _mm512_fmadd_ps(_mm512_add_ps(even_lookups, offset), Even(scale), even_);
    odd_ = _mm512_fmadd_ps(_mm512_add_ps(odd_lookups, offset), Odd(scale), odd_);
    if (!kSymmetric) {
      const __m512i min = _mm512_loadu_si512(MinimaAt(block, layout, g));
      even_ = _mm512_fmadd_ps(Even(min), sum, even_);
      odd_ = _mm512_fmadd_ps(Odd(min), sum, odd_);
    }
  }
  void Store(float* y) const {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_storeu_ps(y, _mm512_permutex2var_ps(even_, low, odd_));
    _mm512_storeu_ps(y + 16, _mm512_permutex2var_ps(even_, high, odd_));
  }

 private:
  __m512 even_ = _mm512_setzero_ps(), odd_ = _mm512_setzero_ps();
};

// The 16 sums of x[0..3], as in SignedSums.
inline __m512 SignedSums(const float* x) {
  __m512 sums = _mm512_setzero_ps();
  constexpr __mmask16 kAdded[4] = {0xaaaa, 0xcccc, 0xf0f0, 0xff00};  // indices with bit j
  for (int j = 0; j < 4; ++j) {
    const __m512 value = _mm512_set1_ps(x[j]);
    sums = _mm512_mask_add_ps(_mm512_sub_ps(sums, value), kAdded[j], sums, value);
  }
  return sums;
}

void MakeInt8TablesAvx512(const float* x, int64_t groups, uint8_t* tables, float* steps,
                          float* sums) {
  for (int64_t g = 0; g < groups; ++g, x += 32) {
    const GroupSteps group = StepsOf<127>(x);
    steps[g] = group.step;
    sums[g] = GroupSum(x);
    const __m512 inverse = _mm512_set1_ps(group.inverse);
    for (int quad = 0; quad < 8; ++quad, tables += 16) {
      // To nearest, ties to even. Values that are not finite become arbitrary integers; the step
      // reports them.
      const __m512i integers = _mm512_cvtps_epi32(_mm512_mul_ps(SignedSums(x + 4 * quad), inverse));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(tables), _mm512_cvtepi32_epi8(integers));
    }
  }
}

// One quad at a time: 16 bits hold the nibbles of a pair of out-features in both planes, and the
// permute reads only the low four bits of its index.
template <int kLocality, bool kSymmetric>
void MultiplyFloatBlocks(const uint8_t* blocks, int64_t k_blocks, const uint8_t* tables,
                         const float* sums, const BlockLayout& layout, float* y) {
  Totals<kSymmetric> totals;
  for (int64_t b = 0; b < k_blocks; ++b, blocks += layout.bytes, sums += 8) {
    for (int g = 0; g < 8; ++g) {
      const uint8_t* codes = blocks + layout.codes + g * 8 * kQuadBytes;
      Prefetch<kLocality>(blocks, layout, g);
      __m512 even0 = _mm512_setzero_ps(), even1 = even0, odd0 = even0, odd1 = even0;
      for (int quad = 0; quad < 8; ++quad, codes += kQuadBytes, tables += 64) {
        const __m512 table = _mm512_loadu_ps(tables);
        const __m512i x =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
        even0 = _mm512_add_ps(even0, _mm512_permutexvar_ps(x, table));
        odd0 = _mm512_add_ps(odd0, _mm512_permutexvar_ps(_mm512_srli_epi32(x, 4), table));
        even1 = _mm512_add_ps(even1, _mm512_permutexvar_ps(_mm512_srli_epi32(x, 8), table));
        odd1 = _mm512_add_ps(odd1, _mm512_permutexvar_ps(_mm512_srli_epi32(x, 12), table));
      }
      const __m512 half = _mm512_set1_ps(0.5f);
      totals.Add(blocks, layout, g, _mm512_fmadd_ps(even0, half, even1),
                 _mm512_fmadd_ps(odd0, half, odd1), sums[g]);
    }
  }
  totals.Store(y);
}

template <int kLocality>
void MultiplyFloat(const uint8_t* blocks, int64_t k_blocks, const uint8_t* tables,
                   const float* /*steps*/, const float* sums, const BlockLayout& layout, float* y) {
  (layout.symmetric
       ? MultiplyFloatBlocks<kLocality, true>
       : MultiplyFloatBlocks<kLocality, false>)(blocks, k_blocks, tables, sums, layout, y);
}

// 64 code bytes are two quads. One byte permute brings the nibbles of a pair of out-features from
// both quads, two planes each, into 32 bits; after the lookups a dot product with 1, 2, 1, 2 adds
// them up. A table register holds four quads; the quad's place is or-ed into the index.
template <int kLocality, bool kSymmetric>
void MultiplyInt8Blocks(const uint8_t* blocks, int64_t k_blocks, const uint8_t* tables,
                        const float* steps, const float* sums, const BlockLayout& layout,
                        float* y) {
  alignas(64) static constexpr uint8_t kOrder[64] = {
      0,  1,  32, 33, 2,  3,  34, 35, 4,  5,  36, 37, 6,  7,  38, 39,  //
      8,  9,  40, 41, 10, 11, 42, 43, 12, 13, 44, 45, 14, 15, 46, 47,  //
      16, 17, 48, 49, 18, 19, 50, 51, 20, 21, 52, 53, 22, 23, 54, 55,  //
      24, 25, 56, 57, 26, 27, 58, 59, 28, 29, 60, 61, 30, 31, 62, 63};
  constexpr int kAndOr = 0xea;  // (a & b) | c
  const __m512i order = _mm512_load_si512(kOrder), nibble = _mm512_set1_epi8(15);
  const __m512i quads[2] = {_mm512_set1_epi32(0x10100000), _mm512_set1_epi32(0x30302020)};
  const __m512i weights = _mm512_set1_epi32(0x02010201);
  Totals<kSymmetric> totals;
  for (int64_t b = 0; b < k_blocks; ++b, blocks += layout.bytes, steps += 8, sums += 8) {
    for (int g = 0; g < 8; ++g) {
      const uint8_t* codes = blocks + layout.codes + g * 8 * kQuadBytes;
      Prefetch<kLocality>(blocks, layout, g);
      __m512i even = _mm512_setzero_si512(), odd = even;
      for (int i = 0; i < 2; ++i, tables += 64) {
        const __m512i table = _mm512_loadu_si512(tables);
        for (int j = 0; j < 2; ++j, codes += 64) {
          const __m512i x = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(codes));
          const __m512i low = _mm512_ternarylogic_epi32(x, nibble, quads[j], kAndOr);
          const __m512i high =
              _mm512_ternarylogic_epi32(_mm512_srli_epi16(x, 4), nibble, quads[j], kAndOr);
          even = _mm512_dpbusd_epi32(even, weights, _mm512_permutexvar_epi8(low, table));
          odd = _mm512_dpbusd_epi32(odd, weights, _mm512_permutexvar_epi8(high, table));
        }
      }
      const __m512 half_step = _mm512_set1_ps(0.5f * steps[g]);
      totals.Add(blocks, layout, g, _mm512_mul_ps(_mm512_cvtepi32_ps(even), half_step),
                 _mm512_mul_ps(_mm512_cvtepi32_ps(odd), half_step), sums[g]);
    }
  }
  totals.Store(y);
}

template <int kLocality>
void MultiplyInt8(const uint8_t* blocks, int64_t k_blocks, const uint8_t* tables,
                  const float* steps, const float* sums, const BlockLayout& layout, float* y) {
  (layout.symmetric
       ? MultiplyInt8Blocks<kLocality, true>
       : MultiplyInt8Blocks<kLocality, false>)(blocks, k_blocks, tables, steps, sums, layout, y);
}

// --- dequantisation -----------------------------------------------------------------------------

// 16 bfloat16 values -> floats.
inline __m512 Widened(const uint8_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}

inline __m512i Rounded(__m512 x) {  // bfloat16 in the high half; the low half is garbage
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), even);
}

// Weights of two codes for 16 out-features, in words 2 n and 2 n + 1.
inline __m512i TwoWeights(__m512 scale, __m512 min, float code) {
  const __m512i first = Rounded(_mm512_fmadd_ps(scale, _mm512_set1_ps(code), min));
  const __m512i second = Rounded(_mm512_fmadd_ps(scale, _mm512_set1_ps(code + 1), min));
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(first, 16), second);
}

// Per group and half of the out-features, two registers hold the four weights of each. An index has
// bit 0 of the code at bit 0, the out-feature at bits 1 to 4 and bit 1 of the code at bit 5. The
// multishift takes both bits from their places in the planes, so that the first lookup, the
// repacking, costs nothing. A result is a part of a row of the panel: two k for each out-feature.
void DequantizeBlockAvx512(const uint8_t* block, const BlockLayout& layout, uint16_t* panel) {
  // The words of a 64-bit lane: the even out-feature of a pair at k and k + 1, then the odd one.
  // Its low 16 bits: nibbles of plane 0, even and odd, then of plane 1. Only low bytes are used.
  const __m512i low_bit[2] = {_mm512_set1_epi64(0x0005'0004'0001'0000),
                              _mm512_set1_epi64(0x0007'0006'0003'0002)};
  const __m512i three = _mm512_set1_epi64(0x0003'0003'0003'0003);  // bit 8 + i to bit 5
  alignas(64) uint16_t out_features[32];
  for (int i = 0; i < 32; ++i) out_features[i] = (uint16_t)(i / 2 * 2);
  const __m512i out_feature = _mm512_load_si512(out_features);
  const __m512i bit0 = _mm512_set1_epi16(1), bit5 = _mm512_set1_epi16(32);
  for (int g = 0; g < 8; ++g) {
    for (int half = 0; half < 2; ++half) {
      const __m512 scale = Widened(ScalesAt(block, layout, g) + half * 32);
      const __m512 min =
          layout.symmetric ? -2.0f * scale : Widened(MinimaAt(block, layout, g) + half * 32);
      const __m512i weights01 = TwoWeights(scale, min, 0), weights23 = TwoWeights(scale, min, 2);
      const uint8_t* codes = block + layout.codes + g * 8 * kQuadBytes + half * 16;
      uint16_t* out = panel + g * 16 * 64 + half * 32;
      for (int quad = 0; quad < 8; ++quad, codes += kQuadBytes) {
        const __m512i x =
            _mm512_cvtepu16_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
        for (int r = 0; r < 2; ++r, out += 64) {
          const __m512i low = _mm512_multishift_epi64_epi8(low_bit[r], x);
          const __m512i high = _mm512_multishift_epi64_epi8(_mm512_add_epi64(low_bit[r], three), x);
          const __m512i index = _mm512_or_si512(
              _mm512_ternarylogic_epi32(low, bit0, out_feature, 0xea),  // (a & b) | c
              _mm512_and_si512(high, bit5));
          _mm512_storeu_si512(out, _mm512_permutex2var_epi16(weights01, index, weights23));
        }
      }
    }
  }
}

// The codes of four k are one lookup per plane: nibble -> four bytes.
void UnpackBlockAvx512(const uint8_t* block, const BlockLayout& layout, int8_t* codes,
                       float* scales, float* mins, int32_t* offsets) {
  UnpackScales2(block, layout, scales, mins);
  const __m512i low = _mm512_load_si512(kBytes.low), high = _mm512_load_si512(kBytes.high);
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  const __m512i factor = _mm512_set1_epi8(-128);  // 128, unsigned
  const uint8_t* source = block + layout.codes;
  for (int g = 0; g < 8; ++g) {
    __m512i sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (int quad = 0; quad < 8; ++quad, source += kQuadBytes, codes += 128) {
      const __m512i x =
          _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
      const __m512i even = _mm512_or_si512(_mm512_permutexvar_epi32(x, low),
                                           _mm512_permutexvar_epi32(_mm512_srli_epi32(x, 8), high));
      const __m512i odd = _mm512_or_si512(_mm512_permutexvar_epi32(_mm512_srli_epi32(x, 4), low),
                                          _mm512_permutexvar_epi32(_mm512_srli_epi32(x, 12), high));
      const __m512i ordered[2] = {_mm512_permutex2var_epi32(even, first, odd),
                                  _mm512_permutex2var_epi32(even, second, odd)};
      for (int i = 0; i < 2; ++i) {
        _mm512_storeu_si512(codes + 64 * i, ordered[i]);
        sums[i] = _mm512_dpbusd_epi32(sums[i], factor, ordered[i]);
      }
    }
    for (int i = 0; i < 2; ++i) {
      _mm512_storeu_si512(offsets + g * 32 + i * 16,
                          _mm512_sub_epi32(_mm512_setzero_si512(), sums[i]));
    }
  }
}

template <int kLocality>
constexpr LookupKernels Avx512Lookup() {
  LookupKernels kernels = GenericLookup();
  kernels.bf16.multiply = MultiplyFloat<kLocality>;
  kernels.bf16.most_rows = 9;
  kernels.int8 = {MakeInt8TablesAvx512, MultiplyInt8<kLocality>, 17};
  kernels.dequantize_block = DequantizeBlockAvx512;
  kernels.unpack_block = UnpackBlockAvx512;
  return kernels;
}

}  // namespace

extern const LookupKernels kAvx512Lookup, kAvx512NtaLookup;
constinit const LookupKernels kAvx512Lookup = Avx512Lookup<2>();
constinit const LookupKernels kAvx512NtaLookup = Avx512Lookup<0>();

}  // namespace ort_aie::host
