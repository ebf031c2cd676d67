// aie.Q4NXMatMul(A, W, bias?, norm_weight?, skip?) -> Y, sum?: Y = x . W^T + bias, W constant in
// Q4NX; x = A, or with norm_weight its RMS norm, or with skip as well the RMS norm of sum = A +
// skip.
//   A           (..., K) float, float16 or bfloat16
//   W           (ceil(N/32), ceil(K/256), 5120) uint8
//   bias        (N) of A's type
//   norm_weight (K) of A's type
//   skip        as A; needs norm_weight
//   Y           (..., N) of A's type
//   sum         as A, where skip is given
// Attributes: K, N, accuracy_level (MatMulNBits' meaning), symmetric (1: every min is -8 * scale,
// so that the minima need not be read; default 0), norm_epsilon, format.
#pragma once

#include <memory>

#include "ops/options.h"
#include "ops/plan.h"
#include "ops/q4nx_weights.h"

namespace ort_aie {

struct Q4NXMatMulAttributes {
  int64_t k = 0, n = 0, accuracy_level = 0, symmetric = 0, format = 0;
  float norm_epsilon = 0;
};

class Q4NXMatMul {
 public:
  struct Inputs {
    Tensor a, bias, norm_weight, skip;
  };

  // `name` is what errors call the weights.
  Q4NXMatMul(const char* name, const Q4NXMatMulAttributes& attributes, const Tensor& w,
             const Options& options);

  Shape OutputShape(const Tensor& a) const;
  // sum is the second output's buffer, where skip is given.
  Plan MakePlan(const Inputs& inputs, void* y, void* sum) const;

 private:
  Q4NXWeights weights_;
  Numerics numerics_;
  int64_t prompt_chunk_;
  bool symmetric_;
  float norm_epsilon_;
  std::shared_ptr<KeptState> kept_ = std::make_shared<KeptState>();
};

}  // namespace ort_aie
