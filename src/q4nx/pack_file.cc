#include "q4nx/pack_file.h"

#include <bit>
#include <cstring>
#include <utility>

#include "q4nx/bfloat16.h"

namespace ort_aie::q4nx {
namespace {

// The numbers of one out-feature in a block, as they stand there.
struct Numbers {
  uint16_t bases[4], minima_bases[4];  // by group, or one
  uint8_t factors[16], minima_factors[16];
  uint8_t codes[256];
};

// Both layouts are described by calls bits(number, at, byte, from, count, flip): `count` bits of a
// number from `at` on are those of a byte from `from` on, but for those that `flip` has. So one
// description reads and writes.
struct Reader {
  const uint8_t* bytes;

  template <typename T>
  void operator()(T& number, int at, int64_t byte, int from, int count, int flip = 0) const {
    const int value = (bytes[byte] >> from & ((1 << count) - 1)) ^ flip;
    number = static_cast<T>(number | value << at);
  }
};

// Reads bases alone.
struct BasesReader {
  const uint8_t* bytes;

  void operator()(uint16_t& number, int at, int64_t byte, int from, int count, int flip = 0) const {
    Reader{bytes}(number, at, byte, from, count, flip);
  }
  void operator()(const uint8_t&, int, int64_t, int, int, int = 0) const {}
};

// Into bytes that are zero.
struct Writer {
  uint8_t* bytes;

  template <typename T>
  void operator()(const T& number, int at, int64_t byte, int from, int count, int flip = 0) const {
    const int value = (number >> at & ((1 << count) - 1)) ^ flip;
    bytes[byte] = static_cast<uint8_t>(bytes[byte] | value << from);
  }
};

// --- blocks -------------------------------------------------------------------------------------

// `size` numbers of `width` bits in planes, whose bytes hold neighbours: runs of `run` numbers.
template <typename Bits>
void Planes(const Bits& bits, uint8_t* numbers, int64_t size, int width, int64_t run, int64_t row,
            int64_t byte) {
  int at = 0;
  for (int plane = 8; plane > 0; plane /= 2) {
    if ((width & plane) == 0) continue;
    const int64_t in_byte = 8 / plane;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t neighbour = i / run;
      bits(numbers[i], at, byte + (neighbour / in_byte * kBlockRows + row) * run + i % run,
           static_cast<int>(neighbour % in_byte) * plane, plane);
    }
    byte += size / in_byte * kBlockRows;
    at += plane;
  }
}

template <typename Bits>
void Bases(const Bits& bits, const FileForm& form, uint16_t* bases, int64_t row, int64_t byte) {
  const int64_t count = form.factor_bits > 0 ? 1 : form.columns / form.group;
  const int64_t width = form.base == Base::kFloat16 ? 2 : 1;
  for (int64_t i = 0; i < count * width; ++i) {
    const int64_t base = i / width, part = i % width;
    bits(bases[base], static_cast<int>(8 * part), byte + (base * kBlockRows + row) * width + part,
         0, 8);
  }
}

// Row `row` of a block.
template <FileType kType, typename Bits>
void InBlock(const Bits& bits, int64_t row, Numbers& numbers) {
  constexpr FileForm form = FileFormOf(kType);
  constexpr FileLayout at = LayoutOfBlock(form);
  const int64_t groups = form.columns / form.group;
  Bases(bits, form, numbers.bases, row, at.bases);
  Planes(bits, numbers.factors, groups, form.factor_bits, 1, row, at.factors);
  if (form.minima) {
    Bases(bits, form, numbers.minima_bases, row, at.minima_bases);
    Planes(bits, numbers.minima_factors, groups, form.factor_bits, 1, row, at.minima_factors);
  }
  for (int64_t span = 0; span < form.columns / kSpan; ++span) {
    Planes(bits, numbers.codes + span * kSpan, kSpan, form.bits, kQuad, row,
           at.codes + span * at.span_bytes);
  }
}

// --- files: the structs of ggml-common.h
// ----------------------------------------------------------

template <typename Bits>
void Float16(const Bits& bits, uint16_t& number, int64_t byte) {
  bits(number, 0, byte, 0, 8);
  bits(number, 8, byte + 1, 0, 8);
}

// `count` bits of each of `size` numbers. A run of them is in the lowest bits of `run` bytes, the
// next run above them, until the bytes are full.
template <typename Bits>
void Runs(const Bits& bits, uint8_t* numbers, int64_t size, int at, int64_t byte, int64_t run,
          int count, int flip = 0) {
  const int64_t in_byte = 8 / count;
  for (int64_t i = 0; i < size; ++i) {
    bits(numbers[i], at, byte + i / (run * in_byte) * run + i % run,
         static_cast<int>(i / run % in_byte) * count, count, flip);
  }
}

// 8 factors of 6 bits of scales, and 8 of minima, in 12 bytes.
template <typename Bits>
void KFactors(const Bits& bits, Numbers& numbers, int64_t byte) {
  for (int64_t i = 0; i < 4; ++i) {
    bits(numbers.factors[i], 0, byte + i, 0, 6);
    bits(numbers.factors[i + 4], 4, byte + i, 6, 2);
    bits(numbers.minima_factors[i], 0, byte + 4 + i, 0, 6);
    bits(numbers.minima_factors[i + 4], 4, byte + 4 + i, 6, 2);
    bits(numbers.factors[i + 4], 0, byte + 8 + i, 0, 4);
    bits(numbers.minima_factors[i + 4], 0, byte + 8 + i, 4, 4);
  }
}

constexpr int kOffset = 0x80;  // of numbers that have a sign in a file

template <FileType kType, typename Bits>
void InFile(const Bits& bits, Numbers& numbers) {
  auto& [bases, minima_bases, factors, minima_factors, codes] = numbers;
  switch (kType) {
    case FileType::kQ4_0:
    case FileType::kIQ4_NL:
      Float16(bits, bases[0], 0);
      return Runs(bits, codes, 32, 0, 2, 16, 4);
    case FileType::kQ4_1:
      Float16(bits, bases[0], 0);
      Float16(bits, minima_bases[0], 2);
      return Runs(bits, codes, 32, 0, 4, 16, 4);
    case FileType::kQ5_0:
      Float16(bits, bases[0], 0);
      Runs(bits, codes, 32, 4, 2, 1, 1);
      return Runs(bits, codes, 32, 0, 6, 16, 4);
    case FileType::kQ5_1:
      Float16(bits, bases[0], 0);
      Float16(bits, minima_bases[0], 2);
      Runs(bits, codes, 32, 4, 4, 1, 1);
      return Runs(bits, codes, 32, 0, 8, 16, 4);
    case FileType::kQ8_0:
      Float16(bits, bases[0], 0);
      return Runs(bits, codes, 32, 0, 2, 32, 8, kOffset);
    case FileType::kQ2_K:
      for (int64_t i = 0; i < 16; ++i) {
        bits(factors[i], 0, i, 0, 4);
        bits(minima_factors[i], 0, i, 4, 4);
      }
      Runs(bits, codes, 256, 0, 16, 32, 2);
      Float16(bits, bases[0], 80);
      return Float16(bits, minima_bases[0], 82);
    case FileType::kQ3_K:
      Runs(bits, codes, 256, 2, 0, 32, 1);
      Runs(bits, codes, 256, 0, 32, 32, 2);
      Runs(bits, factors, 16, 0, 96, 8, 4);
      Runs(bits, factors, 16, 4, 104, 4, 2);
      return Float16(bits, bases[0], 108);
    case FileType::kQ4_K:
      Float16(bits, bases[0], 0);
      Float16(bits, minima_bases[0], 2);
      KFactors(bits, numbers, 4);
      return Runs(bits, codes, 256, 0, 16, 32, 4);
    case FileType::kQ5_K:
      Float16(bits, bases[0], 0);
      Float16(bits, minima_bases[0], 2);
      KFactors(bits, numbers, 4);
      Runs(bits, codes, 256, 4, 16, 32, 1);
      return Runs(bits, codes, 256, 0, 48, 32, 4);
    case FileType::kQ6_K:
      Runs(bits, codes, 256, 0, 0, 64, 4);
      Runs(bits, codes, 256, 4, 128, 32, 2);
      Runs(bits, factors, 16, 0, 192, 16, 8, kOffset);
      return Float16(bits, bases[0], 208);
    case FileType::kIQ4_XS:
      Float16(bits, bases[0], 0);
      Runs(bits, factors, 8, 4, 2, 1, 2);
      Runs(bits, factors, 8, 0, 4, 1, 4);
      return Runs(bits, codes, 256, 0, 8, 16, 4);
    case FileType::kMXFP4:
      bits(bases[0], 0, 0, 0, 8);
      return Runs(bits, codes, 32, 0, 1, 16, 4);
    case FileType::kNVFP4:
      for (int64_t i = 0; i < 4; ++i) bits(bases[i], 0, i, 0, 8);
      return Runs(bits, codes, 64, 0, 4, 8, 4);
    case FileType::kCount:
      break;
  }
}

// --- both ---------------------------------------------------------------------------------------

// Calls f<type>(): layouts are constants to the loops over them.
template <typename F, size_t... kTypes>
void With(FileType type, const F& f, std::index_sequence<kTypes...>) {
  const auto is_it = [&]<FileType kType>() {
    if (type == kType) f.template operator()<kType>();
  };
  (is_it.template operator()<static_cast<FileType>(kTypes)>(), ...);
}
template <typename F>
void With(FileType type, const F& f) {
  With(type, f, std::make_index_sequence<static_cast<size_t>(FileType::kCount)>());
}

// Calls each(struct, block, row of the block) for the structs of n rows.
template <typename Byte, typename BlockByte, typename Each>
void ForStructs(const FileForm& form, Byte* rows, BlockByte* blocks, int64_t n, int64_t k,
                const Each& each) {
  const int64_t columns = k / form.columns, block_bytes = LayoutOfBlock(form).bytes;
  const int64_t bytes = block_bytes / kBlockRows;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t column = 0; column < columns; ++column, rows += bytes) {
      each(rows, blocks + (row / kBlockRows * columns + column) * block_bytes, row % kBlockRows);
    }
  }
}

float Decode(Base base, uint16_t bits) {
  switch (base) {
    case Base::kFloat16:
      return Float16ToFloat(bits);
    case Base::kE8M0:
      return std::bit_cast<float>(bits < 2 ? 0x00200000u << bits : (bits - 1u) << 23);
    case Base::kUE4M3: {
      const int exponent = bits >> 3 & 15;
      const auto mantissa = static_cast<float>(bits & 7);
      if (bits == 0x7f) return 0;  // NaN elsewhere
      if (exponent == 0) return mantissa * 0x1p-10f;
      return (1 + mantissa / 8) * std::bit_cast<float>((exponent - 8 + 127) << 23);
    }
  }
  return 0;
}

bool IsFinite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Row `row` of a block.
template <FileType kType>
void Dequantize(const uint8_t* block, int64_t row, float* weights) {
  constexpr FileForm form = FileFormOf(kType);
  Numbers numbers = {};
  InBlock<kType>(Reader{block}, row, numbers);
  const auto scale_of = [&](const uint16_t* bases, const uint8_t* factors, int64_t group,
                            int32_t zero) {
    if (form.factor_bits == 0) return Decode(form.base, bases[group]);
    return Decode(form.base, bases[0]) * static_cast<float>(factors[group] - zero);
  };
  for (int64_t i = 0; i < form.columns; ++i) {
    const int64_t group = i / form.group;
    const int code = numbers.codes[i];
    const int value = ValueOf(form.values, code) - form.middle;
    weights[i] = scale_of(numbers.bases, numbers.factors, group, form.factor_zero) *
                 static_cast<float>(value);
    if (!form.minima) continue;
    const float minimum = scale_of(numbers.minima_bases, numbers.minima_factors, group, 0);
    weights[i] += form.factor_bits > 0 ? -minimum : minimum;
  }
}

}  // namespace

void PackFile(FileType type, const uint8_t* rows, int64_t n, int64_t k, uint8_t* blocks) {
  std::memset(blocks, 0, static_cast<size_t>(BytesOfBlocks(n, k, FormOf(type))));
  With(type, [&]<FileType kType>() {
    ForStructs(FileFormOf(kType), rows, blocks, n, k,
               [](const uint8_t* its, uint8_t* block, int64_t row) {
                 Numbers numbers = {};
                 InFile<kType>(Reader{its}, numbers);
                 InBlock<kType>(Writer{block}, row, numbers);
               });
  });
}

void UnpackFile(FileType type, const uint8_t* blocks, int64_t n, int64_t k, uint8_t* rows) {
  std::memset(rows, 0, static_cast<size_t>(n * FileRowBytes(type, k)));
  With(type, [&]<FileType kType>() {
    ForStructs(FileFormOf(kType), rows, blocks, n, k,
               [](uint8_t* its, const uint8_t* block, int64_t row) {
                 Numbers numbers = {};
                 InBlock<kType>(Reader{block}, row, numbers);
                 InFile<kType>(Writer{its}, numbers);
               });
  });
}

bool HasFiniteScales(FileType type, const uint8_t* rows, int64_t n, int64_t k) {
  const FileForm& form = FileFormOf(type);
  const int64_t bytes = LayoutOfBlock(form).bytes / kBlockRows;
  bool finite = true;
  With(type, [&]<FileType kType>() {
    if (form.base != Base::kFloat16) return;
    for (int64_t i = 0; i < n * (k / form.columns); ++i, rows += bytes) {
      Numbers numbers = {};
      InFile<kType>(BasesReader{rows}, numbers);
      finite = finite && IsFinite(numbers.bases[0]) && IsFinite(numbers.minima_bases[0]);
    }
  });
  return finite;
}

void DequantizeFileRow(FileType type, const uint8_t* blocks, int64_t n, int64_t k, float* weights) {
  const uint8_t* block = blocks + n / kBlockRows * FileRowBytes(type, k) * kBlockRows;
  With(type, [&]<FileType kType>() {
    constexpr FileForm form = FileFormOf(kType);
    for (int64_t first = 0; first < k; first += form.columns, block += LayoutOfBlock(form).bytes) {
      Dequantize<kType>(block, n % kBlockRows, weights + first);
    }
  });
}

}  // namespace ort_aie::q4nx
