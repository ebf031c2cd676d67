#include "q4nx/pack.h"

#include <cstring>

#include "q4nx/bfloat16.h"

namespace ort_aie::q4nx {
namespace {

struct Nibble {
  int64_t byte;
  int shift;
};

Nibble PlaceOfCode(int64_t row, int64_t col) {
  return {kCodesOffset + (row / 16) * kHalfBytes + col * 8 + (row % 16) / 2,
          (row % 2 != 0) ? 4 : 0};
}

// Bit `plane` of four codes: of in-features 4 * (col / 4) and up.
Nibble PlaceOfBits(int64_t row, int64_t col, int64_t plane) {
  return {kCodesOffset + (col / kQuad) * kQuadBytes + (row / 2) * 2 + plane,
          (row % 2 != 0) ? 4 : 0};
}

int64_t PlaceOfByte(int64_t row, int64_t col) {
  return (col / kQuad * kBlockRows + row) * kQuad + col % kQuad;
}

// Into a block whose codes are all zero.
void StoreCode(uint8_t* block, int64_t row, int64_t col, WeightForm form, uint8_t code) {
  const auto add = [block](Nibble place, int value) {
    block[place.byte] = static_cast<uint8_t>(block[place.byte] | value << place.shift);
  };
  if (form == WeightForm::kQ8NX) {
    block[PlaceOfByte(row, col)] = code;
    return;
  }
  if (form == WeightForm::kQ4NX) return add(PlaceOfCode(row, col), code & 15);
  for (int plane = 0; plane < 2; ++plane) {
    add(PlaceOfBits(row, col, plane), (code >> plane & 1) << (col % kQuad));
  }
}

uint8_t LoadCode(const uint8_t* block, int64_t row, int64_t col, WeightForm form) {
  if (form == WeightForm::kQ8NX) return block[PlaceOfByte(row, col)];
  const auto at = [block](Nibble place) { return block[place.byte] >> place.shift & 15; };
  if (form == WeightForm::kQ4NX) return static_cast<uint8_t>(at(PlaceOfCode(row, col)));
  const int low = at(PlaceOfBits(row, col, 0)) >> (col % kQuad) & 1;
  const int high = at(PlaceOfBits(row, col, 1)) >> (col % kQuad) & 1;
  return static_cast<uint8_t>(low | high << 1);
}

void StoreGroup(uint8_t* block, int64_t row, int64_t group, uint16_t scale, uint16_t min) {
  const int64_t offset = 2 * (group * kBlockRows + row);
  std::memcpy(block + offset, &scale, 2);
  std::memcpy(block + kMinsOffset + offset, &min, 2);
}

void LoadGroup(const uint8_t* block, int64_t row, int64_t group, uint16_t* scale, uint16_t* min) {
  const int64_t offset = 2 * (group * kBlockRows + row);
  std::memcpy(scale, block + offset, 2);
  std::memcpy(min, block + kMinsOffset + offset, 2);
}

// The same for Q8NX.
void StoreByteGroup(uint8_t* block, int64_t row, int64_t group, float scale, uint8_t zero_point) {
  const int64_t index = group * kBlockRows + row;
  std::memcpy(block + kScalesOffset8 + 4 * index, &scale, 4);
  block[kZerosOffset8 + index] = zero_point;
}

void LoadByteGroup(const uint8_t* block, int64_t row, int64_t group, float* scale,
                   uint8_t* zero_point) {
  const int64_t index = group * kBlockRows + row;
  std::memcpy(scale, block + kScalesOffset8 + 4 * index, 4);
  *zero_point = block[kZerosOffset8 + index];
}

// The block that holds a weight; Byte is uint8_t or const uint8_t.
template <typename Byte>
Byte* BlockAt(Byte* blocks, int64_t k, WeightForm form, int64_t row, int64_t col) {
  return blocks + ((row / kBlockRows) * ColBlocks(k) + col / kBlockCols) * BlockBytes(form);
}

// Blocks of codes (n, k). store(block, row, group, index) writes the numbers of a group: row and
// group are those in the block, index that in (n, groups).
template <typename Store>
void PackGroups(const uint8_t* codes, int64_t n, int64_t k, uint8_t* blocks, WeightForm form,
                const Store& store) {
  std::memset(blocks, 0, static_cast<size_t>(BytesOfBlocks(n, k, form)));
  const int64_t groups = CeilDiv(k, kGroup);
  for (int64_t row = 0; row < n; ++row) {
    const int64_t r = row % kBlockRows;
    for (int64_t g = 0; g < groups; ++g) {
      store(BlockAt(blocks, k, form, row, g * kGroup), r, g % kGroupsPerBlock, row * groups + g);
    }
    for (int64_t col = 0; col < k; ++col) {
      StoreCode(BlockAt(blocks, k, form, row, col), r, col % kBlockCols, form,
                codes[row * k + col]);
    }
  }
}

// The inverse, with load in the place of store.
template <typename Load>
void UnpackGroups(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, WeightForm form,
                  const Load& load) {
  const int64_t groups = CeilDiv(k, kGroup);
  for (int64_t row = 0; row < n; ++row) {
    const int64_t r = row % kBlockRows;
    for (int64_t g = 0; g < groups; ++g) {
      load(BlockAt(blocks, k, form, row, g * kGroup), r, g % kGroupsPerBlock, row * groups + g);
    }
    for (int64_t col = 0; col < k; ++col) {
      codes[row * k + col] =
          LoadCode(BlockAt(blocks, k, form, row, col), r, col % kBlockCols, form);
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
          uint8_t* blocks, WeightForm form) {
  PackGroups(codes, n, k, blocks, form, [&](uint8_t* block, int64_t row, int64_t g, int64_t i) {
    StoreGroup(block, row, g, scales[i], mins[i]);
  });
}

void Unpack(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, uint16_t* scales,
            uint16_t* mins, WeightForm form) {
  UnpackGroups(blocks, n, k, codes, form,
               [&](const uint8_t* block, int64_t row, int64_t g, int64_t i) {
                 LoadGroup(block, row, g, &scales[i], &mins[i]);
               });
}

void PackBytes(const uint8_t* codes, const float* scales, const uint8_t* zero_points, int64_t n,
               int64_t k, uint8_t* blocks) {
  PackGroups(codes, n, k, blocks, WeightForm::kQ8NX,
             [&](uint8_t* block, int64_t row, int64_t g, int64_t i) {
               StoreByteGroup(block, row, g, scales[i], zero_points[i]);
             });
}

void UnpackBytes(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, float* scales,
                 uint8_t* zero_points) {
  UnpackGroups(blocks, n, k, codes, WeightForm::kQ8NX,
               [&](const uint8_t* block, int64_t row, int64_t g, int64_t i) {
                 LoadByteGroup(block, row, g, &scales[i], &zero_points[i]);
               });
}

void Widen(const uint8_t* q2nx, int64_t count, uint8_t* q4nx) {
  for (int64_t block = 0; block < count; ++block) {
    const uint8_t* from = q2nx + block * kBlockBytes2;
    uint8_t* to = q4nx + block * kBlockBytes;
    std::memcpy(to, from, kCodesOffset);
    for (int64_t quad = 0; quad < kBlockCols / kQuad; ++quad) {
      const uint8_t* planes = from + kCodesOffset + quad * kQuadBytes;
      for (int64_t pair = 0; pair < kBlockRows / 2; ++pair) {  // of out-features
        uint8_t* codes = to + kCodesOffset + pair / 8 * kHalfBytes + quad * kQuad * 8 + pair % 8;
        for (int64_t i = 0; i < kQuad; ++i) {
          const int low = planes[2 * pair] >> i & 0x11, high = planes[2 * pair + 1] >> i & 0x11;
          codes[8 * i] = static_cast<uint8_t>(low | high << 1);
        }
      }
    }
  }
}

void DequantizeRow(const uint8_t* blocks, int64_t n, int64_t k, float* weights, WeightForm form) {
  const int64_t r = n % kBlockRows;
  for (int64_t col = 0; col < k; ++col) {
    const uint8_t* block = BlockAt(blocks, k, form, n, col);
    const int64_t group = (col % kBlockCols) / kGroup;
    const int code = LoadCode(block, r, col % kBlockCols, form);
    if (form == WeightForm::kQ8NX) {
      float scale;
      uint8_t zero_point;
      LoadByteGroup(block, r, group, &scale, &zero_point);
      weights[col] = scale * static_cast<float>(code - zero_point);
      continue;
    }
    uint16_t scale, min;
    LoadGroup(block, r, group, &scale, &min);
    weights[col] = Bfloat16ToFloat(scale) * static_cast<float>(code) + Bfloat16ToFloat(min);
  }
}

void Dequantize(const uint8_t* blocks, int64_t n, int64_t k, float* weights, WeightForm form) {
  for (int64_t row = 0; row < n; ++row) DequantizeRow(blocks, row, k, weights + row * k, form);
}

void PackMatMulNBits(const MatMulNBitsRows& source, uint8_t* blocks) {
  const int64_t k = source.k, bits = source.bits;
  const WeightForm form = FormOfBits(bits);
  const int64_t source_blocks = CeilDiv(k, source.block_size);
  std::memset(blocks, 0, static_cast<size_t>(BytesOfBlocks(source.rows, k, form)));
  for (int64_t row = 0; row < source.rows; ++row) {
    const int64_t r = row % kBlockRows;
    for (int64_t s = 0; s < source_blocks; ++s) {
      const float exact = LoadScale(source.scales, source.scale_type, row * source_blocks + s);
      const float zero_point = ZeroPoint(source, row, s, source_blocks);
      const uint16_t scale = FloatToBfloat16(exact);
      const uint16_t min = FloatToBfloat16(-zero_point * Bfloat16ToFloat(scale));
      for (int64_t col = s * source.block_size; col < k && col < (s + 1) * source.block_size;
           col += kGroup) {
        uint8_t* block = BlockAt(blocks, k, form, row, col);
        const int64_t group = (col % kBlockCols) / kGroup;
        if (form == WeightForm::kQ8NX) {
          StoreByteGroup(block, r, group, exact, static_cast<uint8_t>(zero_point));
        } else {
          StoreGroup(block, r, group, scale, min);
        }
      }
    }
    // The codes of a source row are contiguous: there are no gaps between blocks.
    const uint8_t* codes = source.b + row * CodeBytes(bits, k, source.block_size);
    for (int64_t col = 0; col < k; ++col) {
      StoreCode(BlockAt(blocks, k, form, row, col), r, col % kBlockCols, form,
                static_cast<uint8_t>(PackedValue(codes, bits, col)));
    }
  }
}

}  // namespace ort_aie::q4nx
