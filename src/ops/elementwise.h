// Element by element, each computed in float32 and rounded once:
//
// aie.Add(A, B), aie.Mul(A, B) -> Y
//   A  (..., K) float, float16 or bfloat16, of any rank
//   B  of A's type: A's shape, or (K), or a single value. (K) and the value may have leading
//      dimensions of 1, up to A's rank; the value may have rank 0
//   Y  as A
// aie.Activation(A) -> Y
//   attribute function  "silu", "gelu", "gelu_tanh" or "sigmoid"; gelu is the one with erf
// Attribute of all of them: format.
#pragma once

#include <string>

#include "ops/plan.h"

namespace ort_aie {

// Throws Error for any name that aie.Activation does not have.
Function ActivationFunction(const std::string& name);

struct ElementwiseAttributes {
  Function function = Function::kAdd;
  int64_t format = 0;
};

class Elementwise {
 public:
  struct Inputs {
    Tensor a, b;  // b only for kAdd and kMultiply
  };

  explicit Elementwise(const ElementwiseAttributes& attributes);

  Shape OutputShape(const Tensor& a) const;
  void Append(const Inputs& inputs, void* y, Plan& plan) const;

 private:
  Function function_;
};

}  // namespace ort_aie
