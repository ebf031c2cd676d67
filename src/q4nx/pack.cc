#include "q4nx/pack.h"

#include <algorithm>
#include <cstring>

#include "q4nx/bfloat16.h"
#include "q4nx/pack_file.h"

namespace ort_aie::q4nx {
namespace {

struct Nibble {
  int64_t byte;
  int shift;
};

// Places are counted from the first code of a block.
Nibble PlaceOfCode(int64_t row, int64_t col) {
  return {(row / 16) * kHalfBytes + col * 8 + (row % 16) / 2, (row % 2 != 0) ? 4 : 0};
}

// Bit `plane` of four codes: of in-features 4 * (col / 4) and up.
Nibble PlaceOfBits(int64_t row, int64_t col, int64_t plane) {
  return {(col / kQuad) * kQuadBytes + (row / 2) * 2 + plane, (row % 2 != 0) ? 4 : 0};
}

int64_t PlaceOfByte(int64_t row, int64_t col) {
  return (col / kQuad * kBlockRows + row) * kQuad + col % kQuad;
}

// `codes` is the first code of a block whose codes are all zero.
void StoreCode(uint8_t* codes, WeightKind kind, int64_t row, int64_t col, uint8_t code) {
  const auto add = [codes](Nibble place, int value) {
    codes[place.byte] = static_cast<uint8_t>(codes[place.byte] | value << place.shift);
  };
  if (kind == WeightKind::kQ8NX) {
    codes[PlaceOfByte(row, col)] = code;
    return;
  }
  if (kind == WeightKind::kQ4NX) return add(PlaceOfCode(row, col), code & 15);
  for (int plane = 0; plane < 2; ++plane) {
    add(PlaceOfBits(row, col, plane), (code >> plane & 1) << (col % kQuad));
  }
}

// `codes` is the first code of a block.
uint8_t LoadCode(const uint8_t* codes, WeightKind kind, int64_t row, int64_t col) {
  if (kind == WeightKind::kQ8NX) return codes[PlaceOfByte(row, col)];
  const auto at = [codes](Nibble place) { return codes[place.byte] >> place.shift & 15; };
  if (kind == WeightKind::kQ4NX) return static_cast<uint8_t>(at(PlaceOfCode(row, col)));
  const int low = at(PlaceOfBits(row, col, 0)) >> (col % kQuad) & 1;
  const int high = at(PlaceOfBits(row, col, 1)) >> (col % kQuad) & 1;
  return static_cast<uint8_t>(low | high << 1);
}

void StoreGroup(uint8_t* block, const WeightForm& form, int64_t row, int64_t group, uint16_t scale,
                uint16_t min) {
  const int64_t offset = 2 * (group * kBlockRows + row);
  std::memcpy(block + offset, &scale, 2);
  if (form.minima) std::memcpy(block + MinimaOffset(form) + offset, &min, 2);
}

void LoadGroup(const uint8_t* block, const WeightForm& form, int64_t row, int64_t group,
               uint16_t* scale, uint16_t* min) {
  const int64_t offset = 2 * (group * kBlockRows + row);
  std::memcpy(scale, block + offset, 2);
  if (form.minima) {
    std::memcpy(min, block + MinimaOffset(form) + offset, 2);
    return;
  }
  const int64_t zero_point = DefaultZeroPoint(form.kind == WeightKind::kQ2NX ? 2 : 4);
  // Not -0 in padding, where the scale is 0.
  *min = FloatToBfloat16(0.0f - static_cast<float>(zero_point) * Bfloat16ToFloat(*scale));
}

// The same for Q8NX.
void StoreByteGroup(uint8_t* block, const WeightForm& form, int64_t row, int64_t group, float scale,
                    uint8_t zero_point) {
  const int64_t index = group * kBlockRows + row;
  std::memcpy(block + kScalesOffset8 + 4 * index, &scale, 4);
  if (form.minima) block[MinimaOffset(form) + index] = zero_point;
}

void LoadByteGroup(const uint8_t* block, const WeightForm& form, int64_t row, int64_t group,
                   float* scale, uint8_t* zero_point) {
  const int64_t index = group * kBlockRows + row;
  std::memcpy(scale, block + kScalesOffset8 + 4 * index, 4);
  *zero_point =
      form.minima ? block[MinimaOffset(form) + index] : static_cast<uint8_t>(DefaultZeroPoint(8));
}

// The block that holds a weight; Byte is uint8_t or const uint8_t.
template <typename Byte>
Byte* BlockAt(Byte* blocks, int64_t k, const WeightForm& form, int64_t row, int64_t col) {
  return blocks + ((row / kBlockRows) * ColBlocks(k) + col / kBlockCols) * BlockBytes(form);
}

// Stores codes from in-feature `begin` on, code(col) for each, into blocks whose codes are zero
// there. By value: a store of bytes may change what a reference refers to.
template <typename Code>
void StoreCodes(uint8_t* blocks, int64_t k, const WeightForm& form, int64_t row, int64_t begin,
                int64_t end, const Code code) {
  const WeightKind kind = form.kind;
  while (begin < end) {
    const int64_t first = begin / kBlockCols * kBlockCols;
    const int64_t stop = std::min(end, first + kBlockCols);
    uint8_t* codes = BlockAt(blocks, k, form, row, first) + CodesOffset(form);
    for (; begin < stop; ++begin) {
      StoreCode(codes, kind, row % kBlockRows, begin - first, code(begin));
    }
  }
}

// Calls each(block, row, group, index) for the groups of (n, k): row and group are those in the
// block, index that in (n, groups).
template <typename Byte, typename Each>
void ForGroups(Byte* blocks, int64_t n, int64_t k, const WeightForm& form, const Each& each) {
  const int64_t groups = CeilDiv(k, form.group), in_block = kBlockCols / form.group;
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t g = 0; g < groups; ++g) {
      each(BlockAt(blocks, k, form, row, g * form.group), row % kBlockRows, g % in_block,
           row * groups + g);
    }
  }
}

void PackCodes(const uint8_t* codes, int64_t n, int64_t k, uint8_t* blocks,
               const WeightForm& form) {
  std::memset(blocks, 0, static_cast<size_t>(BytesOfBlocks(n, k, form)));
  for (int64_t row = 0; row < n; ++row) {
    const uint8_t* of_row = codes + row * k;
    StoreCodes(blocks, k, form, row, 0, k, [of_row](int64_t col) { return of_row[col]; });
  }
}

void UnpackCodes(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes,
                 const WeightForm& form) {
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t col = 0; col < k; ++col) {
      const uint8_t* block = BlockAt(blocks, k, form, row, col);
      codes[row * k + col] =
          LoadCode(block + CodesOffset(form), form.kind, row % kBlockRows, col % kBlockCols);
    }
  }
}

// Value i of a run of values of `bits` bits, the first in the low bits of a byte.
int PackedValue(const uint8_t* packed, int64_t bits, int64_t i) {
  return packed[i * bits / 8] >> (i * bits % 8) & ((1 << bits) - 1);
}

// Initializers mapped from a file may be at any address, not only aligned ones.
template <typename T>
T LoadUnaligned(const void* values, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(values) + index * int64_t{sizeof(T)}, sizeof(T));
  return value;
}

float ZeroPoint(const MatMulNBitsRows& source, int64_t row, int64_t block, int64_t blocks) {
  switch (source.zero_point_kind) {
    case ZeroPoints::kNone:
      break;
    case ZeroPoints::kPacked: {
      const auto* packed = static_cast<const uint8_t*>(source.zero_points) +
                           row * PackedZeroPointBytes(source.bits, source.k, source.block_size);
      return static_cast<float>(PackedValue(packed, source.bits, block));
    }
    case ZeroPoints::kFloat:
      return LoadScale(source.zero_points, source.zero_point_type, row * blocks + block);
  }
  return static_cast<float>(DefaultZeroPoint(source.bits));
}

}  // namespace

float LoadScale(const void* values, ScaleType type, int64_t index) {
  if (type == ScaleType::kFloat32) return LoadUnaligned<float>(values, index);
  const auto bits = LoadUnaligned<uint16_t>(values, index);
  return type == ScaleType::kFloat16 ? Float16ToFloat(bits) : Bfloat16ToFloat(bits);
}

void Pack(const uint8_t* codes, const uint16_t* scales, const uint16_t* mins, int64_t n, int64_t k,
          uint8_t* blocks, const WeightForm& form) {
  PackCodes(codes, n, k, blocks, form);
  ForGroups(blocks, n, k, form, [&](uint8_t* block, int64_t row, int64_t group, int64_t i) {
    StoreGroup(block, form, row, group, scales[i], form.minima ? mins[i] : uint16_t{0});
  });
}

void Unpack(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, uint16_t* scales,
            uint16_t* mins, const WeightForm& form) {
  UnpackCodes(blocks, n, k, codes, form);
  ForGroups(blocks, n, k, form, [&](const uint8_t* block, int64_t row, int64_t group, int64_t i) {
    LoadGroup(block, form, row, group, &scales[i], &mins[i]);
  });
}

void PackBytes(const uint8_t* codes, const float* scales, const uint8_t* zero_points, int64_t n,
               int64_t k, uint8_t* blocks, const WeightForm& form) {
  PackCodes(codes, n, k, blocks, form);
  ForGroups(blocks, n, k, form, [&](uint8_t* block, int64_t row, int64_t group, int64_t i) {
    StoreByteGroup(block, form, row, group, scales[i], form.minima ? zero_points[i] : uint8_t{0});
  });
}

void UnpackBytes(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, float* scales,
                 uint8_t* zero_points, const WeightForm& form) {
  UnpackCodes(blocks, n, k, codes, form);
  ForGroups(blocks, n, k, form, [&](const uint8_t* block, int64_t row, int64_t group, int64_t i) {
    LoadByteGroup(block, form, row, group, &scales[i], &zero_points[i]);
  });
}

void Widen(const uint8_t* blocks, const WeightForm& form, int64_t count, uint8_t* to,
           const WeightForm& wide) {
  for (int64_t b = 0; b < count; ++b, blocks += BlockBytes(form), to += BlockBytes(wide)) {
    for (int64_t g = 0; g < kBlockCols / wide.group; ++g) {
      for (int64_t row = 0; row < kBlockRows; ++row) {
        uint16_t scale, min;
        LoadGroup(blocks, form, row, g * wide.group / form.group, &scale, &min);
        StoreGroup(to, wide, row, g, scale, min);
      }
    }
    const uint8_t* codes = blocks + CodesOffset(form);
    uint8_t* wide_codes = to + CodesOffset(wide);
    if (form.kind == WeightKind::kQ4NX) {
      std::memcpy(wide_codes, codes, static_cast<size_t>(CodeBytesOf(form.kind)));
      continue;
    }
    for (int64_t quad = 0; quad < kBlockCols / kQuad; ++quad) {
      const uint8_t* planes = codes + quad * kQuadBytes;
      for (int64_t pair = 0; pair < kBlockRows / 2; ++pair) {  // of out-features
        uint8_t* its = wide_codes + pair / 8 * kHalfBytes + quad * kQuad * 8 + pair % 8;
        for (int64_t i = 0; i < kQuad; ++i) {
          const int low = planes[2 * pair] >> i & 0x11, high = planes[2 * pair + 1] >> i & 0x11;
          its[8 * i] = static_cast<uint8_t>(low | high << 1);
        }
      }
    }
  }
}

void DequantizeRow(const uint8_t* blocks, int64_t n, int64_t k, float* weights,
                   const WeightForm& form) {
  if (form.kind == WeightKind::kFile) return DequantizeFileRow(form.type, blocks, n, k, weights);
  const int64_t r = n % kBlockRows, codes_offset = CodesOffset(form);
  for (int64_t first = 0; first < k; first += form.group) {
    const uint8_t* block = BlockAt(blocks, k, form, n, first);
    const int64_t begin = first % kBlockCols, group = begin / form.group;
    const int64_t count = std::min(form.group, k - first);
    const auto code = [&](int64_t i) {
      return LoadCode(block + codes_offset, form.kind, r, begin + i);
    };
    if (form.kind == WeightKind::kQ8NX) {
      float scale;
      uint8_t zero_point;
      LoadByteGroup(block, form, r, group, &scale, &zero_point);
      for (int64_t i = 0; i < count; ++i) {
        weights[first + i] = scale * static_cast<float>(code(i) - zero_point);
      }
      continue;
    }
    uint16_t scale_bits, min_bits;
    LoadGroup(block, form, r, group, &scale_bits, &min_bits);
    const float scale = Bfloat16ToFloat(scale_bits), min = Bfloat16ToFloat(min_bits);
    for (int64_t i = 0; i < count; ++i) {
      weights[first + i] = scale * static_cast<float>(code(i)) + min;
    }
  }
}

void Dequantize(const uint8_t* blocks, int64_t n, int64_t k, float* weights,
                const WeightForm& form) {
  for (int64_t row = 0; row < n; ++row) DequantizeRow(blocks, row, k, weights + row * k, form);
}

void PackMatMulNBits(const MatMulNBitsRows& source, const WeightForm& form, uint8_t* blocks) {
  const int64_t k = source.k, bits = source.bits;
  const int64_t source_blocks = CeilDiv(k, source.block_size);
  std::memset(blocks, 0, static_cast<size_t>(BytesOfBlocks(source.rows, k, form)));
  for (int64_t row = 0; row < source.rows; ++row) {
    const int64_t r = row % kBlockRows;
    float zero_point = 0;
    for (int64_t s = 0; s < source_blocks; ++s) {
      const float exact = LoadScale(source.scales, source.scale_type, row * source_blocks + s);
      zero_point = ZeroPoint(source, row, s, source_blocks);
      const uint16_t scale = FloatToBfloat16(exact);
      const uint16_t min = FloatToBfloat16(-zero_point * Bfloat16ToFloat(scale));
      for (int64_t col = s * source.block_size; col < k && col < (s + 1) * source.block_size;
           col += form.group) {
        uint8_t* block = BlockAt(blocks, k, form, row, col);
        const int64_t group = (col % kBlockCols) / form.group;
        if (form.kind == WeightKind::kQ8NX) {
          StoreByteGroup(block, form, r, group, exact, static_cast<uint8_t>(zero_point));
        } else {
          StoreGroup(block, form, r, group, scale, min);
        }
      }
    }
    // The codes of a source row are contiguous: there are no gaps between blocks.
    const uint8_t* codes = source.b + row * CodeBytes(bits, k, source.block_size);
    StoreCodes(blocks, k, form, row, 0, k, [codes, bits](int64_t col) {
      return static_cast<uint8_t>(PackedValue(codes, bits, col));
    });
    if (form == WeightForm{form.kind} || source.zero_point_kind == ZeroPoints::kFloat) continue;
    StoreCodes(blocks, k, form, row, k, CeilDiv(k, form.group) * form.group,
               [zero_point](int64_t) { return static_cast<uint8_t>(zero_point); });
  }
}

}  // namespace ort_aie::q4nx
