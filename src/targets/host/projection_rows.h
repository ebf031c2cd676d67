// What comes before and after the products of a projection, row by row: the numerics of this CPU,
// also where a device multiplies.
#pragma once

#include <cstdint>

#include "targets/host/host_target.h"

namespace ort_aie::host {

constexpr bool IsGated(const MatMulStep& step) { return step.up_weights != nullptr; }

// The weight of the norm as float, valid until this thread asks for kNormWeight again; null without
// a norm.
const float* NormWeight(const MatMulStep& step, const Kernels& kernels);

// a, or a + skip, of a row -> x (k).
void LoadSum(const MatMulStep& step, const Kernels& kernels, int64_t row, float* x);
// (k) -> sum of a row.
void StoreSum(const MatMulStep& step, const Kernels& kernels, int64_t row, const float* x);
// x of a row -> x (k); stores the sum where the step has one.
void LoadRow(const MatMulStep& step, const Kernels& kernels, const float* norm_weight, int64_t row,
             float* x);

// Out-features [n0, n0 + count) of a row: applies what follows the product y, and stores. `up` has
// the second product of a gated step, and is working memory of others. y may be where the results
// belong.
void StoreResults(const MatMulStep& step, const Kernels& kernels, int64_t row, int64_t n0,
                  int64_t count, float* y, float* up);

}  // namespace ort_aie::host
