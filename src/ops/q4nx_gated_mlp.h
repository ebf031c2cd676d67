// aie.Q4NXGatedMLP(A, W_gate, W_up, norm_weight?, skip?) -> Y, sum?:
// Y = activation(x . W_gate^T) * (x . W_up^T), the first half of a gated MLP; x as in
// q4nx_matmul.h.
//   A, norm_weight, skip, sum  as there
//   W_gate, W_up               as W there, constant
//   Y                          (..., N) of A's type
// Attributes: those of Q4NXMatMul, and activation ("silu" or "gelu_tanh"). The result of each
// product stays in float32 until Y is stored.
#pragma once

#include <string>

#include "ops/q4nx_matmul.h"

namespace ort_aie {

class Q4NXGatedMLP {
 public:
  struct Inputs {
    Tensor a, norm_weight, skip;
  };

  Q4NXGatedMLP(const Q4NXMatMulAttributes& attributes, const std::string& activation,
               const Tensor& gate, const Tensor& up, const Options& options);

  Shape OutputShape(const Tensor& a) const { return gate_.OutputShape(a); }
  Plan MakePlan(const Inputs& inputs, void* y, void* sum) const;

 private:
  Q4NXMatMul gate_;
  Q4NXWeights up_;
  Activation activation_;
};

}  // namespace ort_aie
