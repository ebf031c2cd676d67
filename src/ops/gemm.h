// aie.GEMM(A, W, bias?) -> Y: Y = A . W^T + bias, W constant in bfloat16: a projection that was not
// quantised, as those of a vision tower (paper 2).
//   A     (..., K) float, float16 or bfloat16; rounded to bfloat16 where it is multiplied
//   W     (ceil(N/32), ceil(K/256), 8192) bfloat16, blocks as GemmStep (ops/plan.h) has them
//   bias  (N) of A's type
//   Y     (..., N) of A's type
// Attributes: K, N, format. Sums are float32.
#pragma once

#include <memory>

#include "ops/options.h"
#include "ops/plan.h"

namespace ort_aie {

struct GemmAttributes {
  int64_t k = 0, n = 0, format = 0;
};

class Gemm {
 public:
  Gemm(const GemmAttributes& attributes, const Tensor& w, const Options& options);

  Shape OutputShape(const Tensor& a) const;
  Plan MakePlan(const Tensor& a, const Tensor& bias, void* y) const;

 private:
  const uint16_t* weights_;
  int64_t k_, n_, prompt_chunk_;
  std::shared_ptr<KeptState> kept_ = std::make_shared<KeptState>();
};

}  // namespace ort_aie
