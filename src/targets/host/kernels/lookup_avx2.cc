// AVX2: 32 lookups in a table of 16 bytes per instruction (pshufb).
#include <immintrin.h>
#include <stdint.h>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {

#include "targets/host/kernels/generic/lookup.inc"

inline __m256i Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// The same 16 bytes in both halves, because pshufb looks up in each half.
inline __m256i LoadTwice(const uint8_t* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// What the table of a quad adds: for four in-features, 16 pairs of out-features, both planes. The
// two planes of an out-feature are adjacent, so that one multiply-add weights them with 1 and 2.
// Even and odd out-features are separate, as the nibbles are; Totals() are of pairs 0 to 7 and 8 to
// 15.
struct Int8Tables {
  static constexpr int64_t kBytes = 16;
  __m256i sum = _mm256_setzero_si256();  // 16 pairs, of at most 8 * 3 * 127

  void Add(const uint8_t* tables, __m256i nibbles) {
    const __m256i looked_up = _mm256_shuffle_epi8(LoadTwice(tables), nibbles);
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_set1_epi16(0x0201), looked_up));
  }
  void Totals(__m256 totals[2]) const {
    totals[0] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(sum)));
    totals[1] = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(sum, 1)));
  }
};

// Two tables of bytes, for the low and the high bytes of int16.
struct Int16Tables {
  static constexpr int64_t kBytes = 32;
  __m256i low = _mm256_setzero_si256();   // pairs 0 to 3 and 8 to 11
  __m256i high = _mm256_setzero_si256();  // pairs 4 to 7 and 12 to 15

  void Add(const uint8_t* tables, __m256i nibbles) {
    const __m256i bytes0 = _mm256_shuffle_epi8(LoadTwice(tables), nibbles);
    const __m256i bytes1 = _mm256_shuffle_epi8(LoadTwice(tables + 16), nibbles);
    const __m256i weights = _mm256_set1_epi32(0x00020001);
    low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi8(bytes0, bytes1), weights));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi8(bytes0, bytes1), weights));
  }
  void Totals(__m256 totals[2]) const {
    totals[0] = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(low, high, 0x20));
    totals[1] = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(low, high, 0x31));
  }
};

// The 16 sums of x[0..3], as in SignedSums.
inline void SignedSums(const float* x, __m256 sums[2]) {
  const __m256 minus0 = _mm256_setr_ps(-0.0f, 0, -0.0f, 0, -0.0f, 0, -0.0f, 0);
  const __m256 minus1 = _mm256_setr_ps(-0.0f, -0.0f, 0, 0, -0.0f, -0.0f, 0, 0);
  const __m256 minus2 = _mm256_setr_ps(-0.0f, -0.0f, -0.0f, -0.0f, 0, 0, 0, 0);
  const __m256 three = _mm256_xor_ps(_mm256_set1_ps(x[0]), minus0) +
                       _mm256_xor_ps(_mm256_set1_ps(x[1]), minus1) +
                       _mm256_xor_ps(_mm256_set1_ps(x[2]), minus2);
  sums[0] = three - _mm256_set1_ps(x[3]);
  sums[1] = three + _mm256_set1_ps(x[3]);
}

// Integer tables, as 16 int16 each.
template <int kLargest, typename Store>
inline void Tables16(const float* x, int64_t groups, float* steps, float* sums,
                     const Store& store) {
  for (int64_t g = 0; g < groups; ++g, x += 32) {
    const GroupSteps group = StepsOf<kLargest>(x);
    steps[g] = group.step;
    sums[g] = GroupSum(x);
    const __m256 inverse = _mm256_set1_ps(group.inverse);
    for (int quad = 0; quad < 8; ++quad) {
      __m256 table[2];
      SignedSums(x + 4 * quad, table);
      // To nearest, ties to even. Values that are not finite become arbitrary integers; the step
      // reports them.
      const __m256i integers = _mm256_packs_epi32(_mm256_cvtps_epi32(table[0] * inverse),
                                                  _mm256_cvtps_epi32(table[1] * inverse));
      store(g * 8 + quad, _mm256_permute4x64_epi64(integers, 0xd8));
    }
  }
}

// Stores the result of packing 16-bit integers with themselves.
inline void StorePacked(uint8_t* p, __m256i packed) {
  packed = _mm256_permute4x64_epi64(packed, 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

void MakeInt8TablesAvx2(const float* x, int64_t groups, uint8_t* tables, float* steps,
                        float* sums) {
  Tables16<127>(x, groups, steps, sums, [tables](int64_t quad, __m256i integers) {
    StorePacked(tables + quad * 16, _mm256_packs_epi16(integers, integers));
  });
}

// The low bytes, then the high ones.
void MakeInt16Tables(const float* x, int64_t groups, uint8_t* tables, float* steps, float* sums) {
  const __m256i low = _mm256_set1_epi16(255);
  Tables16<32767>(x, groups, steps, sums, [tables, low](int64_t quad, __m256i integers) {
    const __m256i first = _mm256_and_si256(integers, low), second = _mm256_srli_epi16(integers, 8);
    StorePacked(tables + quad * 32, _mm256_packus_epi16(first, first));
    StorePacked(tables + quad * 32 + 16, _mm256_packus_epi16(second, second));
  });
}

inline __m256 Even(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
inline __m256 Odd(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-65536)));
}

template <typename Tables, bool kSymmetric>
inline void MultiplyBlocks(const uint8_t* blocks, int64_t k_blocks, const uint8_t* tables,
                           const float* steps, const float* sums, const BlockLayout& layout,
                           float* y) {
  const __m256i nibble = _mm256_set1_epi8(15);
  __m256 even[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, odd[2] = {even[0], even[0]};
  for (int64_t b = 0; b < k_blocks; ++b, blocks += layout.bytes, steps += 8, sums += 8) {
    for (int g = 0; g < 8; ++g) {
      const uint8_t* codes = blocks + layout.codes + g * 8 * kQuadBytes;
      Prefetch<0>(blocks, layout, g);
      Tables e, o;
      for (int quad = 0; quad < 8; ++quad, codes += kQuadBytes, tables += Tables::kBytes) {
        const __m256i x = Load(codes);
        e.Add(tables, _mm256_and_si256(x, nibble));
        o.Add(tables, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
      }
      __m256 even_totals[2], odd_totals[2];
      e.Totals(even_totals);
      o.Totals(odd_totals);
      const __m256 half_step = _mm256_set1_ps(0.5f * steps[g]), sum = _mm256_set1_ps(sums[g]);
      const __m256 offset = sum * (kSymmetric ? -0.5f : 1.5f);
      for (int half = 0; half < 2; ++half) {
        const __m256i scale = Load(ScalesAt(blocks, layout, g) + half * 32);
        even[half] += (even_totals[half] * half_step + offset) * Even(scale);
        odd[half] += (odd_totals[half] * half_step + offset) * Odd(scale);
        if (!kSymmetric) {
          const __m256i min = Load(MinimaAt(blocks, layout, g) + half * 32);
          even[half] += Even(min) * sum;
          odd[half] += Odd(min) * sum;
        }
      }
    }
  }
  for (int half = 0; half < 2; ++half) {
    const __m256 low = _mm256_unpacklo_ps(even[half], odd[half]);
    const __m256 high = _mm256_unpackhi_ps(even[half], odd[half]);
    _mm256_storeu_ps(y + 16 * half, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(y + 16 * half + 8, _mm256_permute2f128_ps(low, high, 0x31));
  }
}

template <typename Tables>
void MultiplyAvx2(const uint8_t* blocks, int64_t k_blocks, const uint8_t* tables,
                  const float* steps, const float* sums, const BlockLayout& layout, float* y) {
  (layout.symmetric
       ? MultiplyBlocks<Tables, true>
       : MultiplyBlocks<Tables, false>)(blocks, k_blocks, tables, steps, sums, layout, y);
}

// --- dequantisation by two lookups --------------------------------------------------------------

// The second lookup's tables of a group, by parity and pair j of out-features: four weights, as
// bfloat16 in 32 bits, of pair j and of pair j + 8.
struct WeightTables {
  alignas(32) uint32_t of[2][8][2][4];
};

inline __m256i RoundedWeights(__m256 scale, float code, __m256 min) {
  const __m256i bits = _mm256_castps_si256(scale * code + min);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff))), 16);
}

inline void MakeWeightTables(const uint8_t* block, const BlockLayout& layout, int g,
                             WeightTables& tables) {
  for (int half = 0; half < 2; ++half) {
    const __m256i scales = Load(ScalesAt(block, layout, g) + half * 32);
    const __m256i mins = layout.symmetric ? scales : Load(MinimaAt(block, layout, g) + half * 32);
    for (int parity = 0; parity < 2; ++parity) {
      const __m256 scale = parity ? Odd(scales) : Even(scales);
      const __m256 min = layout.symmetric ? -2.0f * scale : parity ? Odd(mins) : Even(mins);
      __m256i code[4];  // 8 pairs each
      for (int i = 0; i < 4; ++i) code[i] = RoundedWeights(scale, (float)i, min);
      const __m256i low01 = _mm256_unpacklo_epi32(code[0], code[1]);
      const __m256i low23 = _mm256_unpacklo_epi32(code[2], code[3]);
      const __m256i high01 = _mm256_unpackhi_epi32(code[0], code[1]);
      const __m256i high23 = _mm256_unpackhi_epi32(code[2], code[3]);
      const __m256i transposed[4] = {
          // pairs i and i + 4
          _mm256_unpacklo_epi64(low01, low23), _mm256_unpackhi_epi64(low01, low23),
          _mm256_unpacklo_epi64(high01, high23), _mm256_unpackhi_epi64(high01, high23)};
      for (int i = 0; i < 4; ++i) {
        _mm_store_si128(reinterpret_cast<__m128i*>(tables.of[parity][i][half]),
                        _mm256_castsi256_si128(transposed[i]));
        _mm_store_si128(reinterpret_cast<__m128i*>(tables.of[parity][i + 4][half]),
                        _mm256_extracti128_si256(transposed[i], 1));
      }
    }
  }
}

// The weights of four k, of pairs j and j + 8 and one parity, as bfloat16 in 32 bits. codes: four
// codes per pair, in 16 bits; select: brings those of pairs j and j + 8 to each 32 bits of a half.
inline __m256i FourWeights(const uint32_t table[2][4], __m256i codes, __m256i select) {
  const __m256i k_shifts = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  const __m256i shifted = _mm256_srlv_epi32(_mm256_shuffle_epi8(codes, select), k_shifts);
  // Reads only the low two bits of its index.
  return _mm256_castps_si256(_mm256_permutevar_ps(_mm256_castsi256_ps(Load(table)), shifted));
}

void DequantizeBlockAvx2(const uint8_t* block, const BlockLayout& layout, uint16_t* panel) {
  const __m256i nibble = _mm256_set1_epi8(15), spread = LoadTwice(kSpread);
  const __m256i plane_weights = _mm256_set1_epi16(0x0201);
  for (int g = 0; g < 8; ++g) {
    WeightTables tables;
    MakeWeightTables(block, layout, g, tables);
    const uint8_t* planes = block + layout.codes + g * 8 * kQuadBytes;
    __m256i codes[8][2];  // by quad and parity: 16 pairs
    for (int quad = 0; quad < 8; ++quad) {
      const __m256i x = Load(planes + quad * kQuadBytes);
      const __m256i nibbles[2] = {_mm256_and_si256(x, nibble),
                                  _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble)};
      for (int parity = 0; parity < 2; ++parity) {
        codes[quad][parity] =
            _mm256_maddubs_epi16(_mm256_shuffle_epi8(spread, nibbles[parity]), plane_weights);
      }
    }
    for (int j = 0; j < 8; j += 2) {
      __m256i select[2];
      for (int i = 0; i < 2; ++i) {
        select[i] = _mm256_set1_epi32((int32_t)0x80800000 | (2 * (j + i) + 1) << 8 | 2 * (j + i));
      }
      for (int quad = 0; quad < 8; ++quad) {
        __m256i both[2];  // in a half: k 0 1 and 2 3 of the even out-feature, then of the odd one
        for (int i = 0; i < 2; ++i) {
          both[i] =
              _mm256_packus_epi32(FourWeights(tables.of[0][j + i], codes[quad][0], select[i]),
                                  FourWeights(tables.of[1][j + i], codes[quad][1], select[i]));
        }
        const __m256 first = _mm256_castsi256_ps(both[0]), second = _mm256_castsi256_ps(both[1]);
        const __m256 rows[2] = {_mm256_shuffle_ps(first, second, 0x88),
                                _mm256_shuffle_ps(first, second, 0xdd)};
        for (int r = 0; r < 2; ++r) {
          uint16_t* out = panel + (g * 16 + quad * 2 + r) * 64 + 4 * j;
          _mm_storeu_ps(reinterpret_cast<float*>(out), _mm256_castps256_ps128(rows[r]));
          _mm_storeu_ps(reinterpret_cast<float*>(out + 32), _mm256_extractf128_ps(rows[r], 1));
        }
      }
    }
  }
}

}  // namespace

extern const LookupKernels kAvx2Lookup;
constinit const LookupKernels kAvx2Lookup = [] {
  LookupKernels kernels = GenericLookup();
  kernels.bf16 = {MakeInt16Tables, MultiplyAvx2<Int16Tables>, 32};
  kernels.int8 = {MakeInt8TablesAvx2, MultiplyAvx2<Int8Tables>, 64};
  kernels.dequantize_block = DequantizeBlockAvx2;
  return kernels;
}();

}  // namespace ort_aie::host
