// aie.RMSNorm(A, weight, skip?) -> Y, sum?: the RMS norm of A, or with skip of sum = A + skip, by
// itself. A norm before a projection is part of the projection (matmul.h), with the same results in
// float32.
//   A       (..., K) float, float16 or bfloat16
//   weight  (K) of A's type
//   skip    as A
//   Y       as A
//   sum     as A, if skip is given and the output is wanted. The norm uses the unrounded sum.
// Attributes: K, epsilon, format.
//
// aie.GatedRMSNorm(A, weight, gate) -> Y: the RMS norm of each K channels of A, such as a head,
// times activation(gate). As com.microsoft.GatedRMSNorm.
//   A       (..., channels), channels a multiple of K
//   weight  (K) of A's type
//   gate    as A
//   Y       as A
// Attributes: K, epsilon, activation ("silu" or "sigmoid"), format.
#pragma once

#include <string>

#include "ops/plan.h"

namespace ort_aie {

struct RMSNormAttributes {
  int64_t k = 0, format = 0;
  float epsilon = 0;
};

class RMSNorm {
 public:
  struct Inputs {
    Tensor a, weight, skip;
  };

  explicit RMSNorm(const RMSNormAttributes& attributes);

  Shape OutputShape(const Tensor& a) const;  // of Y, and of sum
  // sum may be null.
  void Append(const Inputs& inputs, void* y, void* sum, Plan& plan) const;

 private:
  int64_t k_;
  float epsilon_;
};

struct GatedRMSNormAttributes {
  int64_t k = 0, format = 0;
  float epsilon = 0;
  std::string activation;
};

class GatedRMSNorm {
 public:
  struct Inputs {
    Tensor a, weight, gate;
  };

  explicit GatedRMSNorm(const GatedRMSNormAttributes& attributes);

  Shape OutputShape(const Tensor& a) const;
  void Append(const Inputs& inputs, void* y, Plan& plan) const;

 private:
  int64_t k_;
  float epsilon_;
  Function function_;
};

}  // namespace ort_aie
