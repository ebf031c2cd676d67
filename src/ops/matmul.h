// Projections, Y = x . W^T + bias, W constant; x = A, or with norm_weight its RMS norm, or with
// skip as well the RMS norm of sum = A + skip.
//
// aie.Q4NXMatMul(A, W, bias?, norm_weight?, skip?) -> Y, sum?: W in Q4NX or Q2NX.
// aie.GEMM, the same of weights that were not quantised, as those of a vision tower (paper 2): A is
// rounded to bfloat16 where it is multiplied, sums are float32.
//   A           (..., K) float, float16 or bfloat16
//   W           blocks, as BlocksShape (ops/weights.h) says
//   bias        (N) of A's type
//   norm_weight (K) of A's type
//   skip        as A; needs norm_weight
//   Y           (..., N) of A's type
//   sum         as A, where skip is given and somebody wants it
// Attributes: K, N, norm_epsilon, format; and of Q4NXMatMul bits (4, the default, or 2),
// accuracy_level (MatMulNBits' meaning) and symmetric (1: every min is -2^(bits-1) * scale, so that
// the minima need not be read; default 0).
#pragma once

#include <memory>

#include "ops/options.h"
#include "ops/plan.h"
#include "ops/weights.h"

namespace ort_aie {

struct MatMulAttributes {
  WeightAttributes weights;
  int64_t accuracy_level = 0, symmetric = 0;
  float norm_epsilon = 0;
};

class MatMul {
 public:
  struct Inputs {
    Tensor a, bias, norm_weight, skip;
  };

  // `name` is what errors call the weights.
  MatMul(const char* name, const MatMulAttributes& attributes, const Tensor& w,
         const Options& options);

  Shape OutputShape(const Tensor& a) const;
  // sum is the second output's buffer, or null.
  void Append(const Inputs& inputs, void* y, void* sum, Plan& plan) const;

 private:
  Weights weights_;
  Numerics numerics_;
  int64_t prompt_chunk_;
  bool symmetric_;
  float norm_epsilon_;
  std::shared_ptr<KeptState> kept_ = std::make_shared<KeptState>();
};

}  // namespace ort_aie
