// The work before and after the products of a projection, row by row, with the numerics of this
// CPU; also used if a device multiplies.
#pragma once

#include <cstdint>

#include "targets/host/host_target.h"

namespace ort_aie::host {

constexpr bool IsGated(const MatMulStep& step) { return step.up_weights != nullptr; }
// Whether nothing follows the product.
constexpr bool StoresAsIs(const MatMulStep& step) {
  return !IsGated(step) && step.bias == nullptr && step.activation == Activation::kNone;
}

// The weight of the norm as float, valid until this thread asks for kNormWeight again; null without
// a norm.
const float* NormWeight(const MatMulStep& step, const Kernels& kernels);

// Loads a row of a, or of a + skip, into x (k).
void LoadSum(const MatMulStep& step, const Kernels& kernels, int64_t row, float* x);
// Stores x (k) as a row of sum.
void StoreSum(const MatMulStep& step, const Kernels& kernels, int64_t row, const float* x);
// Loads a row of x into x (k). Stores the sum if the step has one.
void LoadRow(const MatMulStep& step, const Kernels& kernels, const float* norm_weight, int64_t row,
             float* x);

// Takes the product y for out-features [n0, n0 + count) of a row, applies the work after it, and
// stores the results. `up` is the second product of a gated step; its memory is overwritten. y may
// be the place of the results.
void StoreResults(const MatMulStep& step, const Kernels& kernels, int64_t row, int64_t n0,
                  int64_t count, float* y, float* up);

}  // namespace ort_aie::host
