// Packing to and from Q4NX (bits 4), Q2NX (bits 2) and Q8NX (bits 8), in plain loops: packing runs
// once, when a model is compiled.
#pragma once

#include <cstdint>

#include "q4nx/layout.h"

namespace ort_aie::q4nx {

// codes (n, k) uint8 below 2^bits; scales and mins (n, ceil(k/group)) bfloat16 bits ->
// blocks (ceil(n/32), ceil(k/256), BlockBytes(form)). mins are not read if the form has none.
// Padding gets scale 0, min 0, code 0.
void Pack(const uint8_t* codes, const uint16_t* scales, const uint16_t* mins, int64_t n, int64_t k,
          uint8_t* blocks, const WeightForm& form);

// The inverse of Pack. Of a form without minima, mins are those that the codes imply.
void Unpack(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, uint16_t* scales,
            uint16_t* mins, const WeightForm& form);

// The same for Q8NX: codes and zero_points are uint8, scales float32, (n, ceil(k/group)) as
// zero_points are. Padding gets scale 0, zero point 0 and code 0.
void PackBytes(const uint8_t* codes, const float* scales, const uint8_t* zero_points, int64_t n,
               int64_t k, uint8_t* blocks, const WeightForm& form);
void UnpackBytes(const uint8_t* blocks, int64_t n, int64_t k, uint8_t* codes, float* scales,
                 uint8_t* zero_points, const WeightForm& form);

// `count` blocks of any form of Q4NX or Q2NX -> blocks of a form of Q4NX with the same weights:
// codes of 2 bits are valid codes of 4. Its groups must divide those of `form`, and it must have
// minima if there are any, or 2 bits.
void Widen(const uint8_t* blocks, const WeightForm& form, int64_t count, uint8_t* to,
           const WeightForm& wide = kShipping);

// weights (n, k) float32 = scale * code + min, of Q8NX scale * (code - zero point), in float32
// arithmetic; of GGUF files as file_forms.h says.
void Dequantize(const uint8_t* blocks, int64_t n, int64_t k, float* weights,
                const WeightForm& form);

// k weights of out-feature n, likewise.
void DequantizeRow(const uint8_t* blocks, int64_t n, int64_t k, float* weights,
                   const WeightForm& form);

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
  int64_t block_size;  // a multiple of 32: a block's scale is repeated for each of its groups
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
// bf16(scale)). With 8 bits, scales and zero points are kept as they are. The form's group divides
// block_size, its kind is that of the bits, and without minima there are no zero points but the
// default one. Where a group ends after k, its codes there are the zero point; 0 if
// that is a float, and in the forms of format 1 (ops/weights.h).
void PackMatMulNBits(const MatMulNBitsRows& source, const WeightForm& form, uint8_t* blocks);

}  // namespace ort_aie::q4nx
