#include "ops/q4nx_gather.h"

#include "base/error.h"

namespace ort_aie {

Q4NXGather::Q4NXGather(const Q4NXGatherAttributes& attributes, const Tensor& w)
    : weights_(CheckWeights("W", attributes.weights, w)), type_(attributes.type) {
  Require(IsFloat(type_), "attribute dtype must be FLOAT (1), FLOAT16 (10) or BFLOAT16 (16)");
}

Shape Q4NXGather::OutputShape(const Tensor& indices) const {
  Require(indices.type == DataType::kInt32 || indices.type == DataType::kInt64,
          "input indices must be int32 or int64, got ", NameOf(indices.type));
  Shape shape = indices.shape;
  shape.push_back(weights_.k);
  return shape;
}

void Q4NXGather::Append(const Tensor& indices, void* y, Plan& plan) const {
  const int64_t count = ElementCount(indices.shape).As("input indices");
  if (count == 0) return;
  plan.steps.emplace_back(GatherStep{weights_.blocks, count, weights_.k, weights_.n, indices.data,
                                     indices.type, y, type_, weights_.form});
}

}  // namespace ort_aie
