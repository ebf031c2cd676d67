#include "ops/select_rows.h"

#include "base/error.h"
#include "ops/format.h"

namespace ort_aie {

SelectRows::SelectRows(int64_t format) { CheckFormat(format); }

Shape SelectRows::OutputShape(const Tensor& a, const Tensor& indices) const {
  Require(IsFloat(a.type), "input A must be float, float16 or bfloat16, got ", NameOf(a.type));
  Require(a.shape.size() == 3, "input A must be (batch, rows, K), got ", a.shape);
  RequireTensor("indices", indices, DataType::kInt64, {a.shape[0], 1, 1});
  return {a.shape[0], 1, a.shape[2]};
}

void SelectRows::Append(const Tensor& a, const Tensor& indices, void* y, Plan& plan) const {
  const int64_t batch = a.shape[0], rows = a.shape[1], k = a.shape[2];
  std::pmr::memory_resource* memory = plan.steps.get_allocator().resource();
  // The row numbers of all batch rows, one after the other, in the memory of the call.
  auto* flat = static_cast<int64_t*>(
      memory->allocate(static_cast<size_t>(batch) * sizeof(int64_t), alignof(int64_t)));
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t row = indices.as<int64_t>()[b];
    Require(row >= -rows && row < rows, "input indices has ", row, " for batch row ", b,
            ", expected ", -rows, " to ", rows - 1, ": A has ", rows, " rows");
    flat[b] = b * rows + (row < 0 ? row + rows : row);
  }
  if (batch == 0 || k == 0 || y == a.data) return;
  plan.steps.emplace_back(GatherStep{.weights = a.as<uint8_t>(),
                                     .count = batch,
                                     .k = k,
                                     .n = batch * rows,
                                     .indices = flat,
                                     .index_type = DataType::kInt64,
                                     .y = y,
                                     .type = a.type,
                                     .is_table = true});
}

}  // namespace ort_aie
