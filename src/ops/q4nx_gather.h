// aie.Q4NXGather(W, indices) -> Y: rows of W, dequantised (token embeddings that share one copy
// with the lm_head projection).
//   W       blocks of the shape BlocksShape (ops/weights.h), as for Q4NXMatMul
//   indices (...) int32 or int64; negative ones count from N, others out of range give zeros
//   Y       (..., K)
// Attributes: K, N, bits, format, group, minima and type as for Q4NXMatMul, dtype (TensorProto data
// type of Y: FLOAT, FLOAT16 or BFLOAT16).
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
