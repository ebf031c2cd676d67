// aie.Gather(W, indices) -> Y: rows of a table that is not quantised, such as the embeddings of a
// model that does not share them with its lm_head.
//   W        (N, K) float, float16 or bfloat16, constant
//   indices  (...) int32 or int64; negative ones count from N; others out of range are an error, as
//            in ONNX Runtime's Gather
//   Y        (..., K) of W's type
// Attribute: format.
#pragma once

#include "ops/plan.h"

namespace ort_aie {

class Gather {
 public:
  Gather(int64_t format, const Tensor& w);

  Shape OutputShape(const Tensor& indices) const;
  void Append(const Tensor& indices, void* y, Plan& plan) const;
  DataType type() const { return w_.type; }

 private:
  int64_t n() const { return w_.shape[0]; }
  int64_t k() const { return w_.shape[1]; }

  Tensor w_;
};

}  // namespace ort_aie
