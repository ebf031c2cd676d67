// Packing to and from Q4NX. Plain loops: packing runs once, when a model is compiled.
#pragma once

#include <cstdint>

#include "q4nx/layout.h"

namespace ort_aie::q4nx {

// codes (n, k) uint8 0..15; scales and mins (n, ceil(k/32)) bfloat16 bits ->
// blocks (ceil(n/32), ceil(k/256), 5120). Padding gets scale 0, min 0, code 0.
void Pack(const uint8_t* codes, const uint16_t* scales, const uint16_t* mins, int64_t n, int64_t k,
          uint8_t* blocks);

// The inverse of Pack.
void Unpack(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, uint16_t* scales,
            uint16_t* mins);

// weights (n, k) float32 = scale * code + min, in float32 arithmetic.
void Dequantize(const uint8_t* blocks, int64_t n, int64_t k, float* weights);

enum class ScaleType { kFloat32, kFloat16, kBfloat16 };
enum class ZeroPoints { kNone, kPacked, kScaleType };

// The weight inputs of com.microsoft.MatMulNBits with bits = 4, for a range of out-features.
struct MatMulNBitsRows {
  const uint8_t* b;         // (rows, ceil(k/block_size), block_size/2)
  const void* scales;       // (rows, ceil(k/block_size)) of scale_type
  const void* zero_points;  // see zero_point_kind; kNone means 8 everywhere
  ZeroPoints zero_point_kind;
  ScaleType scale_type;
  int64_t rows;
  int64_t k;
  int64_t block_size;  // 32, 64, 128 or 256: a block's scale is repeated for each of its groups
};

// -> blocks (ceil(rows/32), ceil(k/256), 5120); scale = bf16(scale), min = bf16(-zp * bf16(scale)).
void PackMatMulNBits(const MatMulNBitsRows& source, uint8_t* blocks);

}  // namespace ort_aie::q4nx
