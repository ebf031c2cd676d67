// aie.Q4NXGatedMLP and aie.GatedGEMM(A, W_gate, W_up?, norm_weight?, skip?) -> Y, sum?:
// Y = activation(x . W_gate^T) * (x . W_up^T), the first half of a gated MLP; x as in matmul.h.
//   A, norm_weight, skip, sum  as there
//   W_gate, W_up               as W there: of Q4NXMatMul, or of GEMM. Without W_up, W_gate is W of
//                              2 N out-features, gate before up; N must then be a multiple of 32
//   Y                          (..., N) of A's type
// Attributes: those of Q4NXMatMul or of GEMM, and activation ("silu" or "gelu_tanh"). The result of
// each product stays in float32 until Y is stored.
#pragma once

#include <string>

#include "ops/matmul.h"

namespace ort_aie {

class GatedMLP {
 public:
  struct Inputs {
    Tensor a, norm_weight, skip;
  };

  GatedMLP(const MatMulAttributes& attributes, const std::string& activation, const Tensor& gate,
           const Tensor& up, const Options& options);

  Shape OutputShape(const Tensor& a) const { return gate_.OutputShape(a); }
  void Append(const Inputs& inputs, void* y, void* sum, Plan& plan) const;

 private:
  MatMul gate_;
  Weights up_;
  Activation activation_;
};

}  // namespace ort_aie
