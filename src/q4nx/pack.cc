#include "q4nx/pack.h"

#include <cstring>

#include "q4nx/bfloat16.h"

namespace ort_aie::q4nx {
namespace {

struct CodePlace {
  int64_t byte;
  int shift;
};

CodePlace PlaceOfCode(int64_t row, int64_t col) {
  return {kCodesOffset + (row / 16) * kHalfBytes + col * 8 + (row % 16) / 2,
          (row % 2 != 0) ? 4 : 0};
}

void StoreCode(uint8_t* block, int64_t row, int64_t col, uint8_t code) {
  const CodePlace place = PlaceOfCode(row, col);
  block[place.byte] =
      static_cast<uint8_t>(block[place.byte] | static_cast<uint8_t>((code & 15) << place.shift));
}

uint8_t LoadCode(const uint8_t* block, int64_t row, int64_t col) {
  const CodePlace place = PlaceOfCode(row, col);
  return (block[place.byte] >> place.shift) & 15;
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

uint8_t* BlockAt(uint8_t* blocks, int64_t k, int64_t row, int64_t col) {
  return blocks + ((row / kBlockRows) * ColBlocks(k) + col / kBlockCols) * kBlockBytes;
}

const uint8_t* BlockAt(const uint8_t* blocks, int64_t k, int64_t row, int64_t col) {
  return blocks + ((row / kBlockRows) * ColBlocks(k) + col / kBlockCols) * kBlockBytes;
}

float LoadScale(const void* values, ScaleType type, int64_t index) {
  if (type == ScaleType::kFloat32) return static_cast<const float*>(values)[index];
  const uint16_t bits = static_cast<const uint16_t*>(values)[index];
  return type == ScaleType::kFloat16 ? Float16ToFloat(bits) : Bfloat16ToFloat(bits);
}

float ZeroPoint(const MatMulNBitsRows& source, int64_t row, int64_t block, int64_t blocks) {
  switch (source.zero_point_kind) {
    case ZeroPoints::kNone:
      return 8.0f;
    case ZeroPoints::kPacked: {
      const auto* packed = static_cast<const uint8_t*>(source.zero_points);
      const uint8_t byte = packed[row * CeilDiv(blocks, 2) + block / 2];
      return static_cast<float>((block % 2 != 0) ? byte >> 4 : byte & 15);
    }
    case ZeroPoints::kScaleType:
      return LoadScale(source.zero_points, source.scale_type, row * blocks + block);
  }
  return 8.0f;
}

}  // namespace

void Pack(const uint8_t* codes, const uint16_t* scales, const uint16_t* mins, int64_t n, int64_t k,
          uint8_t* blocks) {
  std::memset(blocks, 0, static_cast<size_t>(RowBlocks(n) * ColBlocks(k) * kBlockBytes));
  const int64_t groups = CeilDiv(k, kGroup);
  for (int64_t row = 0; row < n; ++row) {
    const int64_t r = row % kBlockRows;
    for (int64_t g = 0; g < groups; ++g) {
      uint8_t* block = BlockAt(blocks, k, row, g * kGroup);
      StoreGroup(block, r, g % kGroupsPerBlock, scales[row * groups + g], mins[row * groups + g]);
    }
    for (int64_t col = 0; col < k; ++col) {
      StoreCode(BlockAt(blocks, k, row, col), r, col % kBlockCols, codes[row * k + col]);
    }
  }
}

void Unpack(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, uint16_t* scales,
            uint16_t* mins) {
  const int64_t groups = CeilDiv(k, kGroup);
  for (int64_t row = 0; row < n; ++row) {
    const int64_t r = row % kBlockRows;
    for (int64_t g = 0; g < groups; ++g) {
      LoadGroup(BlockAt(blocks, k, row, g * kGroup), r, g % kGroupsPerBlock,
                &scales[row * groups + g], &mins[row * groups + g]);
    }
    for (int64_t col = 0; col < k; ++col) {
      codes[row * k + col] = LoadCode(BlockAt(blocks, k, row, col), r, col % kBlockCols);
    }
  }
}

void Dequantize(const uint8_t* blocks, int64_t n, int64_t k, float* weights) {
  for (int64_t row = 0; row < n; ++row) {
    const int64_t r = row % kBlockRows;
    for (int64_t col = 0; col < k; ++col) {
      const uint8_t* block = BlockAt(blocks, k, row, col);
      uint16_t scale, min;
      LoadGroup(block, r, (col % kBlockCols) / kGroup, &scale, &min);
      const float code = LoadCode(block, r, col % kBlockCols);
      weights[row * k + col] = Bfloat16ToFloat(scale) * code + Bfloat16ToFloat(min);
    }
  }
}

void PackMatMulNBits(const MatMulNBitsRows& source, uint8_t* blocks) {
  const int64_t k = source.k;
  const int64_t source_blocks = CeilDiv(k, source.block_size);
  std::memset(blocks, 0, static_cast<size_t>(RowBlocks(source.rows) * ColBlocks(k) * kBlockBytes));
  for (int64_t row = 0; row < source.rows; ++row) {
    const int64_t r = row % kBlockRows;
    const uint8_t* codes = source.b + row * source_blocks * (source.block_size / 2);
    for (int64_t s = 0; s < source_blocks; ++s) {
      const uint16_t scale =
          FloatToBfloat16(LoadScale(source.scales, source.scale_type, row * source_blocks + s));
      const uint16_t min =
          FloatToBfloat16(-ZeroPoint(source, row, s, source_blocks) * Bfloat16ToFloat(scale));
      for (int64_t col = s * source.block_size; col < k && col < (s + 1) * source.block_size;
           col += kGroup) {
        StoreGroup(BlockAt(blocks, k, row, col), r, (col % kBlockCols) / kGroup, scale, min);
      }
    }
    // A source row is one run of nibbles, low first: blocks follow each other without gaps.
    for (int64_t col = 0; col < k; ++col) {
      const uint8_t code = (codes[col / 2] >> (4 * (col % 2))) & 15;
      StoreCode(BlockAt(blocks, k, row, col), r, col % kBlockCols, code);
    }
  }
}

}  // namespace ort_aie::q4nx
