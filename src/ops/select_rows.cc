// aie.SelectRows(A, indices) -> Y: one row of each batch row, such as the last token's, if the
// lm_head makes logits only for that token. ONNX's GatherND with batch_dims=1 as the passes write
// it.
//   A        (batch, rows, K) float, float16 or bfloat16
//   indices  (batch, 1, 1) int64: rows; negative ones count from the end, others out of
//            range are an error
//   Y        (batch, 1, K) of A's type
// Attribute: format. If A has one row, Y is A: nothing is copied within a plan.
#include "base/error.h"
#include "ops/op.h"

namespace ort_aie {
namespace {

class SelectRows final : public Op {
 public:
  enum Input { kA, kIndices, kInputCount };

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor& a = inputs[kA];
    RequireFloat("A", a);
    Require(a.shape.size() == 3, "input A must be (batch, rows, K), got ", a.shape);
    RequireTensor("indices", inputs[kIndices], DataType::kInt64, {a.shape[0], 1, 1});
    outputs[0] = {a.type, {a.shape[0], 1, a.shape[2]}};
    if (a.shape[1] == 1) outputs[0].same_as = kA;
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor& a = inputs[kA];
    const int64_t batch = a.shape[0], rows = a.shape[1], k = a.shape[2];
    std::pmr::memory_resource* memory = plan.steps.get_allocator().resource();
    // The row numbers of all batch rows, one after the other, in the memory of the call.
    auto* flat = static_cast<int64_t*>(
        memory->allocate(static_cast<size_t>(batch) * sizeof(int64_t), alignof(int64_t)));
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t row = inputs[kIndices].as<int64_t>()[b];
      Require(row >= -rows && row < rows, "input indices has ", row, " for batch row ", b,
              ", expected ", -rows, " to ", rows - 1, ": A has ", rows, " rows");
      flat[b] = b * rows + (row < 0 ? row + rows : row);
    }
    if (batch == 0 || k == 0 || buffers[0] == a.data) return;
    // The table begins and ends with rows that are chosen: nobody reads the others.
    const int64_t first = flat[0], last = flat[batch - 1];
    for (int64_t b = 0; b < batch; ++b) flat[b] -= first;
    plan.steps.emplace_back(GatherStep{.weights = a.as<uint8_t>() + BytesOf(a.type, first * k),
                                       .count = batch,
                                       .k = k,
                                       .n = last - first + 1,
                                       .indices = flat,
                                       .index_type = DataType::kInt64,
                                       .y = buffers[0],
                                       .type = a.type,
                                       .is_table = true});
  }
};

void InferSelectRows(const ShapeContext& context) {
  auto value = RequiredActivations(context);
  if (value.dims.size() > 1) value.dims[1] = {1};
  context.SetOutput(0, value);
}

}  // namespace

OpDescription DescribeSelectRows() {
  return {.name = "SelectRows",
          .inputs = SelectRows::kInputCount,
          .required_inputs = SelectRows::kInputCount,
          .create = MakeOp<SelectRows>,
          .infer = InferSelectRows,
          .passes_on = true};
}

}  // namespace ort_aie
