// aie.SelectRows(A, indices) -> Y: one row of each batch row, such as the last token's, if the
// lm_head makes logits only for that token. ONNX's GatherND with batch_dims=1 as the passes write
// it.
//   A        (batch, rows, K) float, float16 or bfloat16
//   indices  (batch, 1, 1) int64: rows; negative ones count from the end, others out of
//            range are an error
//   Y        (batch, 1, K) of A's type
// Attribute: format. If A has one row, Y is A: nothing is copied within a plan.
#pragma once

#include "ops/plan.h"

namespace ort_aie {

class SelectRows {
 public:
  explicit SelectRows(int64_t format);

  Shape OutputShape(const Tensor& a, const Tensor& indices) const;
  void Append(const Tensor& a, const Tensor& indices, void* y, Plan& plan) const;
};

}  // namespace ort_aie
