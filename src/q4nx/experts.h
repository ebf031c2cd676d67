// The weights of com.microsoft.QMoE, one expert after the other -> blocks.
#pragma once

#include <cstdint>

#include "q4nx/pack.h"

namespace ort_aie::q4nx {

// The layout of one of QMoE's matrices, and which of its rows are meant: `n` rows, every `step`-th
// from `first` on. A fused FC1 holds gate and up in one matrix.
//
// With quant_type fp4, blocks are MXFP4 at its own bits. Codes are then (k, source_rows / 2), with
// the low nibble for even rows, as ONNX Runtime's CUDA kernel and the model builder have them. The
// scales (source_rows, k / 32) are exponents, and in place of zero points is a float that
// multiplies all weights: a power of two, which joins the exponents.
struct ExpertLayout {
  int64_t source_rows, first, step, n, k;
  int64_t bits;
  int64_t block_size;    // in-features that share a scale, a multiple of 32; 0: all of them
  WeightForm form = {};  // of the blocks

  constexpr bool is_fp4() const { return form.kind == WeightKind::kFile; }
};

// Bytes of one expert's codes, scales (as elements) and zero points in the source.
constexpr int64_t ExpertCodeBytes(const ExpertLayout& layout) {
  return layout.source_rows * (layout.k * layout.bits / 8);
}
constexpr int64_t ExpertScales(const ExpertLayout& layout) {
  return layout.source_rows * (layout.block_size == 0 ? 1 : layout.k / layout.block_size);
}
// With a scale for each row, the zero points of rows are packed together.
constexpr int64_t ExpertZeroPointBytes(const ExpertLayout& layout) {
  if (layout.is_fp4()) return sizeof(float);
  return layout.block_size == 0
             ? CeilDiv(layout.source_rows * layout.bits, 8)
             : layout.source_rows * CeilDiv(layout.k / layout.block_size * layout.bits, 8);
}

inline constexpr const char* kNoFp4Scale =
    "a scale of experts in FP4 is not a power of two, or too large or too small for MXFP4";

// One expert -> its blocks. zero_points may be null, but not of fp4. False if kNoFp4Scale is true.
[[nodiscard]] bool PackExpert(const ExpertLayout& layout, const uint8_t* codes, const void* scales,
                              ScaleType scale_type, const uint8_t* zero_points, uint8_t* blocks);

// One expert's biases -> (n) float.
void ReadBias(const ExpertLayout& layout, const void* biases, ScaleType type, float* to);

}  // namespace ort_aie::q4nx
