// aie.Q4NXMatMul(A, W, bias?) -> Y: Y = A . W^T + bias, W constant in Q4NX.
//   A    (..., K) float, float16 or bfloat16
//   W    (ceil(N/32), ceil(K/256), 5120) uint8
//   bias (N) of A's type
//   Y    (..., N) of A's type
// Attributes: K, N, accuracy_level (MatMulNBits' meaning), symmetric (1: every min is -8 * scale,
// so that the minima need not be read; default 0), format.
#pragma once

#include "ops/options.h"
#include "ops/plan.h"
#include "ops/q4nx_weights.h"

namespace ort_aie {

struct Q4NXMatMulAttributes {
  int64_t k = 0, n = 0, accuracy_level = 0, symmetric = 0, format = 0;
};

class Q4NXMatMul {
 public:
  Q4NXMatMul(const Q4NXMatMulAttributes& attributes, const Tensor& w, const Options& options);

  Shape OutputShape(const Tensor& a) const;
  Plan MakePlan(const Tensor& a, const Tensor& bias, void* y) const;

 private:
  Q4NXWeights weights_;
  Numerics numerics_;
  bool symmetric_;
};

}  // namespace ort_aie
