// The forms that GGUF files have, at their own bits: codes and scales are those of the file, in an
// order that dot products read without a shuffle. One row of kFileForms describes a form: layout,
// sizes, packing, attributes, kernels and the Python arrays read it.
//
// A block has 32 out-features x `columns` in-features; the blocks of n x k weights stand row-major,
// (ceil(n / 32), k / columns). k is a multiple of `columns`, so that only out-features are padded,
// with zeros.
//
//   scale(n, group) = base * (factor - factor_zero), or base if there are no factors
//   minimum         = -(base of minima * factor of minima), or base of minima; only some have them
//   weight(n, k)    = scale * (value(code) - middle) + minimum, in float32 arithmetic, where value
//                     is the code, or what the codebook says
//
// A block has, one part after the other:
//   bases           of each out-feature, [32]; without factors of each group, [columns / group][32]
//   bases of minima likewise
//   factors         [columns / group][32], in planes
//   factors of minima, likewise
//   codes           a span of 32 in-features after the other, each in planes
//
// A number of 6 bits has a plane for its low 4 bits, and then one for its upper 2; 5 bits: 4 and 1;
// 3 bits: 2 and 1. A plane of b bits holds those of 8 / b neighbours in a byte, the first in the
// lowest bits. Neighbours of codes are quads, four in-features (k / 4); the byte of a span's plane
// is [quad / (8 / b)][n][k % 4]. Neighbours of factors are groups: [group / (8 / b)][n].
#pragma once

#include <cstddef>
#include <cstdint>

namespace ort_aie {

// In the order of kFileForms.
enum class FileType : uint8_t {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kNVFP4,
  kCount
};

namespace q4nx {

// How a base is stored. kE8M0 is half of 2^(e - 127) (the codebook holds twice the values);
// kUE4M3 likewise is half of an unsigned 4-bit exponent, 3-bit mantissa value.
enum class Base : uint8_t { kFloat16, kE8M0, kUE4M3 };

// What a code stands for: itself, or a value of a codebook.
enum class Values : uint8_t { kCodes, kIq4, kE2m1 };

struct FileForm {
  const char* name;   // of the type in GGUF, in lower case
  int32_t ggml_type;  // its number in a file
  int32_t columns;    // in-features of a block
  int32_t group;      // in-features that share a scale, 16 or 32
  int32_t bits;       // of a code
  int32_t middle;     // what is subtracted from a code's value
  Base base;
  int32_t factor_bits;  // 0: no factors
  int32_t factor_zero;
  bool minima;
  Values values;
};

inline constexpr int32_t kSpan = 32;  // in-features whose codes stand together

// IQ4_NL's and IQ4_XS's values, and twice those of E2M1 (OCP Microscaling Formats): sign, exponent,
// mantissa.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kE2m1Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

constexpr int ValueOf(Values values, int code) {
  switch (values) {
    case Values::kCodes:
      return code;
    case Values::kIq4:
      return kIq4Values[code];
    case Values::kE2m1:
      return kE2m1Values[code];
  }
  return code;
}

// clang-format off
inline constexpr FileForm kFileForms[] = {
  // name, type, columns, group, bits, middle, base, factors: bits, zero; minima, values
  {"q4_0",    2,  32, 32, 4,   8, Base::kFloat16, 0,   0, false, Values::kCodes},
  {"q4_1",    3,  32, 32, 4,   0, Base::kFloat16, 0,   0, true,  Values::kCodes},
  {"q5_0",    6,  32, 32, 5,  16, Base::kFloat16, 0,   0, false, Values::kCodes},
  {"q5_1",    7,  32, 32, 5,   0, Base::kFloat16, 0,   0, true,  Values::kCodes},
  {"q8_0",    8,  32, 32, 8, 128, Base::kFloat16, 0,   0, false, Values::kCodes},
  {"q2_k",   10, 256, 16, 2,   0, Base::kFloat16, 4,   0, true,  Values::kCodes},
  {"q3_k",   11, 256, 16, 3,   4, Base::kFloat16, 6,  32, false, Values::kCodes},
  {"q4_k",   12, 256, 32, 4,   0, Base::kFloat16, 6,   0, true,  Values::kCodes},
  {"q5_k",   13, 256, 32, 5,   0, Base::kFloat16, 6,   0, true,  Values::kCodes},
  {"q6_k",   14, 256, 16, 6,  32, Base::kFloat16, 8, 128, false, Values::kCodes},
  {"iq4_nl", 20,  32, 32, 4,   0, Base::kFloat16, 0,   0, false, Values::kIq4},
  {"iq4_xs", 23, 256, 32, 4,   0, Base::kFloat16, 6,  32, false, Values::kIq4},
  {"mxfp4",  39,  32, 32, 4,   0, Base::kE8M0,    0,   0, false, Values::kE2m1},
  {"nvfp4",  40,  64, 16, 4,   0, Base::kUE4M3,   0,   0, false, Values::kE2m1},
};
// clang-format on
static_assert(sizeof(kFileForms) / sizeof(kFileForms[0]) == static_cast<size_t>(FileType::kCount));

constexpr const FileForm& FileFormOf(FileType type) {
  return kFileForms[static_cast<size_t>(type)];
}

// Bits, with a sign, of codes less their middle, which is half of the range where a form has
// minima: 2^(bits - 1) is included on both sides.
constexpr int BitsOfValues(const FileForm& form) {
  const int middle = form.minima ? 1 << (form.bits - 1) : form.middle;
  int bits = 1;
  for (int code = 0; code < 1 << form.bits; ++code) {
    const int value = ValueOf(form.values, code) - middle;
    while (value > 1 << (bits - 1) || value < -(1 << (bits - 1))) ++bits;
  }
  return bits;
}

// Whether all scales, of 32 in-features each, are powers of two.
constexpr bool HasPowers(const FileForm& form) {
  return form.base == Base::kE8M0 && form.factor_bits == 0 && form.group == 32;
}

// Where the parts of a block are, from its start.
struct FileLayout {
  int32_t bases, minima_bases, factors, minima_factors, codes, bytes;
  int32_t span_bytes;  // of the codes of a span
};
constexpr FileLayout LayoutOfBlock(const FileForm& form) {
  const int32_t groups = form.columns / form.group;
  const int32_t base_bytes =
      32 * (form.base == Base::kFloat16 ? 2 : 1) * (form.factor_bits > 0 ? 1 : groups);
  const int32_t factor_bytes = 32 * groups * form.factor_bits / 8;
  FileLayout at{};
  at.bases = 0;
  at.minima_bases = base_bytes;
  at.factors = at.minima_bases + (form.minima ? base_bytes : 0);
  at.minima_factors = at.factors + factor_bytes;
  at.codes = at.minima_factors + (form.minima ? factor_bytes : 0);
  at.span_bytes = 32 * kSpan * form.bits / 8;
  at.bytes = at.codes + form.columns / kSpan * at.span_bytes;
  return at;
}
// Bits a weight, as in the file.
static_assert(LayoutOfBlock(FileFormOf(FileType::kQ4_0)).bytes == 32 * 18);
static_assert(LayoutOfBlock(FileFormOf(FileType::kQ8_0)).bytes == 32 * 34);
static_assert(LayoutOfBlock(FileFormOf(FileType::kQ2_K)).bytes == 32 * 84);
static_assert(LayoutOfBlock(FileFormOf(FileType::kQ3_K)).bytes == 32 * 110);
static_assert(LayoutOfBlock(FileFormOf(FileType::kQ4_K)).bytes == 32 * 144);
static_assert(LayoutOfBlock(FileFormOf(FileType::kQ5_K)).bytes == 32 * 176);
static_assert(LayoutOfBlock(FileFormOf(FileType::kQ6_K)).bytes == 32 * 210);
static_assert(LayoutOfBlock(FileFormOf(FileType::kIQ4_XS)).bytes == 32 * 136);
static_assert(LayoutOfBlock(FileFormOf(FileType::kMXFP4)).bytes == 32 * 17);
static_assert(LayoutOfBlock(FileFormOf(FileType::kNVFP4)).bytes == 32 * 36);

}  // namespace q4nx
}  // namespace ort_aie
