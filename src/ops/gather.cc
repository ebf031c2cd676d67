#include "ops/gather.h"

#include "base/error.h"
#include "ops/format.h"

namespace ort_aie {
namespace {

template <typename T>
void CheckIndices(const T* indices, int64_t count, int64_t n) {
  for (int64_t i = 0; i < count; ++i) {
    Require(indices[i] >= -n && indices[i] < n, "input indices has ", indices[i], " as element ", i,
            ", expected ", -n, " to ", n - 1, ": W has ", n, " rows");
  }
}

}  // namespace

Gather::Gather(int64_t format, const Tensor& w) : w_(w) {
  CheckFormat(format);
  Require(static_cast<bool>(w), "input W must be a constant initializer");
  Require(IsFloat(w.type), "input W must be float, float16 or bfloat16, got ", NameOf(w.type));
  Require(w.shape.size() == 2 && k() > 0, "input W must be (N, K), got ", w.shape);
  const Size bytes = ByteCount(w.type, w.shape);
  Require(bytes == w.bytes, "input W has ", w.bytes, " bytes, expected ", bytes, " for ",
          NameOf(w.type), " ", w.shape);
}

Shape Gather::OutputShape(const Tensor& indices) const {
  Require(indices.type == DataType::kInt32 || indices.type == DataType::kInt64,
          "input indices must be int32 or int64, got ", NameOf(indices.type));
  Shape shape = indices.shape;
  shape.push_back(k());
  return shape;
}

void Gather::Append(const Tensor& indices, void* y, Plan& plan) const {
  const int64_t count = ElementCount(indices.shape).As("input indices");
  if (indices.type == DataType::kInt64) {
    CheckIndices(indices.as<int64_t>(), count, n());
  } else {
    CheckIndices(indices.as<int32_t>(), count, n());
  }
  if (count == 0) return;
  plan.steps.emplace_back(GatherStep{.weights = w_.as<uint8_t>(),
                                     .count = count,
                                     .k = k(),
                                     .n = n(),
                                     .indices = indices.data,
                                     .index_type = indices.type,
                                     .y = y,
                                     .type = w_.type,
                                     .is_table = true});
}

}  // namespace ort_aie
