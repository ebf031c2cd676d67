#include "ops/select_rows.h"

#include <algorithm>

#include "base/error.h"
#include "ops/format.h"

namespace ort_aie {

namespace {

void CheckA(const Tensor& a) {
  Require(IsFloat(a.type), "input A must be float, float16 or bfloat16, got ", NameOf(a.type));
  Require(a.shape.size() == 3, "input A must be (batch, rows, K), got ", a.shape);
}

// `count` row numbers in the memory of the call.
int64_t* RowNumbers(Plan& plan, int64_t count) {
  std::pmr::memory_resource* memory = plan.steps.get_allocator().resource();
  return static_cast<int64_t*>(
      memory->allocate(static_cast<size_t>(count) * sizeof(int64_t), alignof(int64_t)));
}

// y = rows of a, which are numbered through all batch rows.
void AppendRows(const Tensor& a, const int64_t* rows, int64_t count, void* y, Plan& plan) {
  if (count == 0 || a.shape[2] == 0 || y == a.data) return;
  plan.steps.emplace_back(GatherStep{.weights = a.as<uint8_t>(),
                                     .count = count,
                                     .k = a.shape[2],
                                     .n = a.shape[0] * a.shape[1],
                                     .indices = rows,
                                     .index_type = DataType::kInt64,
                                     .y = y,
                                     .type = a.type,
                                     .is_table = true});
}

// How many rows of A are meant.
int64_t CountOf(const Tensor& a, const Tensor& count) {
  Require(count.type == DataType::kInt64 && ElementCount(count.shape).As("input count") == 1,
          "input count must be int64 with one value, got ", NameOf(count.type), " ", count.shape);
  const int64_t given = *count.as<int64_t>(), rows = a.shape[1];
  Require(given >= 0, "input count must not be negative, got ", given);
  return given == 0 ? rows : std::min(given, rows);
}

}  // namespace

SelectRows::SelectRows(int64_t format) { CheckFormat(format); }

Shape SelectRows::OutputShape(const Tensor& a, const Tensor& indices) const {
  CheckA(a);
  RequireTensor("indices", indices, DataType::kInt64, {a.shape[0], 1, 1});
  return {a.shape[0], 1, a.shape[2]};
}

void SelectRows::Append(const Tensor& a, const Tensor& indices, void* y, Plan& plan) const {
  const int64_t batch = a.shape[0], rows = a.shape[1];
  int64_t* const numbers = RowNumbers(plan, batch);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t row = indices.as<int64_t>()[b];
    Require(row >= -rows && row < rows, "input indices has ", row, " for batch row ", b,
            ", expected ", -rows, " to ", rows - 1, ": A has ", rows, " rows");
    numbers[b] = b * rows + (row < 0 ? row + rows : row);
  }
  AppendRows(a, numbers, batch, y, plan);
}

LastRows::LastRows(int64_t format) { CheckFormat(format); }

Shape LastRows::OutputShape(const Tensor& a, const Tensor& count) const {
  CheckA(a);
  return {a.shape[0], CountOf(a, count), a.shape[2]};
}

void LastRows::Append(const Tensor& a, const Tensor& count, void* y, Plan& plan) const {
  const int64_t batch = a.shape[0], rows = a.shape[1], last = CountOf(a, count);
  int64_t* const numbers = RowNumbers(plan, batch * last);
  for (int64_t i = 0; i < batch * last; ++i) numbers[i] = i / last * rows + rows - last + i % last;
  AppendRows(a, numbers, batch * last, y, plan);
}

}  // namespace ort_aie
