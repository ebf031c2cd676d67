// What the host does before and after a projection on the device, row by row: the numerics of the
// host target.
#pragma once

#include <algorithm>
#include <cstdint>

#include "targets/host/host_target.h"
#include "targets/host/scratch.h"

namespace ort_aie::npu_target {

// The weight of the norm as float, valid until this thread asks for kNormWeight again; null
// without a norm.
inline const float* NormWeight(const host::Kernels& kernels, const MatMulStep& step) {
  if (step.norm_weight == nullptr) return nullptr;
  float* weight = host::Scratch<float>(host::Purpose::kNormWeight, step.k);
  host::ToFloat(kernels, step.type, step.norm_weight, step.k, weight);
  return weight;
}

// a, or a + skip, of a row -> x (k).
inline void LoadSum(const host::Kernels& kernels, const MatMulStep& step, int64_t row, float* x) {
  const int64_t first = row * step.k;
  host::ToFloat(kernels, step.type, host::Advance(step.a, step.type, first), step.k, x);
  if (step.skip == nullptr) return;
  float* skip = host::Scratch<float>(host::Purpose::kSkip, step.k);
  host::ToFloat(kernels, step.type, host::Advance(step.skip, step.type, first), step.k, skip);
  kernels.add(skip, step.k, x);
}

// x of a row, as bfloat16 -> y (k).
inline void LoadRow(const host::Kernels& kernels, const MatMulStep& step, const float* norm_weight,
                    int64_t row, uint16_t* y) {
  float* x = host::Scratch<float>(host::Purpose::kRow, step.k);
  LoadSum(kernels, step, row, x);
  if (norm_weight != nullptr) kernels.rms_norm(norm_weight, step.k, step.norm_epsilon, x);
  kernels.float_to_bfloat16(x, step.k, y);
}

inline void StoreSum(const host::Kernels& kernels, const MatMulStep& step, int64_t row) {
  if (step.skip == nullptr) return;
  float* x = host::Scratch<float>(host::Purpose::kRow, step.k);
  LoadSum(kernels, step, row, x);
  host::FromFloat(kernels, step.type, x, step.k, host::Advance(step.sum, step.type, row * step.k));
}

// Out-features [n0, n0 + count) of a row from products of the device, and what follows them; `up`
// is read where the step is gated, the bias is added where `with_bias` says so.
inline void StoreProducts(const host::Kernels& kernels, const MatMulStep& step, int64_t row,
                          int64_t n0, int64_t count, const uint16_t* product, const uint16_t* up,
                          bool with_bias) {
  float* y = host::Scratch<float>(host::Purpose::kTile, 2 * count);
  kernels.bfloat16_to_float(product, count, y);
  if (step.up_weights != nullptr) {
    kernels.bfloat16_to_float(up, count, y + count);
    (step.activation == Activation::kSilu ? kernels.gate_silu : kernels.gate_gelu_tanh)(y + count,
                                                                                        count, y);
  }
  if (with_bias) {
    host::ToFloat(kernels, step.type, host::Advance(step.bias, step.type, n0), count, y + count);
    kernels.add(y + count, count, y);
  }
  host::FromFloat(kernels, step.type, y, count,
                  host::Advance(step.y, step.type, row * step.n + n0));
}

}  // namespace ort_aie::npu_target
