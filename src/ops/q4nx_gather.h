// aie.Q4NXGather(W, indices) -> Y: rows of W, dequantised (token embeddings that share one copy
// with the lm_head projection).
//   W       (ceil(N/32), ceil(K/256), 5120) uint8, in place of 5120, 3072 with bits 2 and 9472
//           with bits 8
//   indices (...) int32 or int64; negative ones count from N, others out of range give zeros
//   Y       (..., K)
// Attributes: K, N, bits (4, the default, 2 or 8), format, dtype (TensorProto data type of Y:
// FLOAT, FLOAT16 or BFLOAT16).
#pragma once

#include "ops/plan.h"
#include "ops/weights.h"

namespace ort_aie {

struct Q4NXGatherAttributes {
  WeightAttributes weights;
  DataType type = DataType::kFloat32;
};

class Q4NXGather {
 public:
  Q4NXGather(const Q4NXGatherAttributes& attributes, const Tensor& w);

  Shape OutputShape(const Tensor& indices) const;
  void Append(const Tensor& indices, void* y, Plan& plan) const;
  DataType type() const { return type_; }

 private:
  Weights weights_;
  DataType type_;
};

}  // namespace ort_aie
