// Packing to and from Q4NX (bits 4), Q2NX (bits 2) and Q8NX (bits 8), in plain loops: packing runs
// once, when a model is compiled.
#pragma once

#include <cstdint>

#include "q4nx/layout.h"

namespace ort_aie::q4nx {

// codes (n, k) uint8 below 2^bits; scales and mins (n, ceil(k/32)) bfloat16 bits ->
// blocks (ceil(n/32), ceil(k/256), BlockBytes(form)). Padding gets scale 0, min 0, code 0.
void Pack(const uint8_t* codes, const uint16_t* scales, const uint16_t* mins, int64_t n, int64_t k,
          uint8_t* blocks, WeightForm form = WeightForm::kQ4NX);

// The inverse of Pack.
void Unpack(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, uint16_t* scales,
            uint16_t* mins, WeightForm form = WeightForm::kQ4NX);

// The same for Q8NX: codes and zero_points are uint8, scales float32, (n, ceil(k/32)) as
// zero_points are. Padding gets scale 0, zero point 0 and code 0.
void PackBytes(const uint8_t* codes, const float* scales, const uint8_t* zero_points, int64_t n,
               int64_t k, uint8_t* blocks);
void UnpackBytes(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, float* scales,
                 uint8_t* zero_points);

// `count` blocks of Q2NX -> Q4NX blocks with the same weights: codes of 2 bits are valid codes of
// 4.
void Widen(const uint8_t* q2nx, int64_t count, uint8_t* q4nx);

// weights (n, k) float32 = scale * code + min, of Q8NX scale * (code - zero point), in float32
// arithmetic.
void Dequantize(const uint8_t* blocks, int64_t n, int64_t k, float* weights,
                WeightForm form = WeightForm::kQ4NX);

// k weights of out-feature n, likewise.
void DequantizeRow(const uint8_t* blocks, int64_t n, int64_t k, float* weights,
                   WeightForm form = WeightForm::kQ4NX);

enum class ScaleType { kFloat32, kFloat16, kBfloat16 };

// Value `index` of values at any address.
float LoadScale(const void* values, ScaleType type, int64_t index);

enum class ZeroPoints { kNone, kPacked, kFloat };

// The weight inputs of com.microsoft.MatMulNBits with 4, 2 or 8 bits, for a range of out-features.
struct MatMulNBitsRows {
  const uint8_t* b;    // (rows, ceil(k/block_size), block_size * bits/8)
  const void* scales;  // (rows, ceil(k/block_size)) of scale_type
  // See zero_point_kind. With kNone every zero point is DefaultZeroPoint; with kFloat there is one
  // value of zero_point_type for each scale; 8 bits do not have those.
  const void* zero_points;
  ZeroPoints zero_point_kind;
  ScaleType scale_type, zero_point_type;
  int64_t rows;
  int64_t k;
  int64_t block_size;  // 32, 64, 128 or 256: a block's scale is repeated for each of its groups
  int64_t bits = 4;
};

// Bytes of B and of packed zero points for one out-feature; block_size * bits are whole bytes.
template <typename T>
constexpr T CodeBytes(int64_t bits, T k, int64_t block_size) {
  return CeilDiv(k, block_size) * (block_size * bits / 8);
}
template <typename T>
constexpr T PackedZeroPointBytes(int64_t bits, T k, int64_t block_size) {
  return CeilDiv(CeilDiv(k, block_size) * bits, 8);
}

// -> blocks (ceil(rows/32), ceil(k/256), BlockBytes(form)); scale = bf16(scale), min = bf16(-zp *
// bf16(scale)). With 8 bits, scales and zero points are kept as they are.
void PackMatMulNBits(const MatMulNBitsRows& source, uint8_t* blocks);

}  // namespace ort_aie::q4nx
