// aie.Gather(W, indices) -> Y: rows of a table that is not quantised, such as the embeddings of a
// model that does not share them with its lm_head.
//   W        (N, K) float, float16 or bfloat16, constant
//   indices  (...) int32 or int64; negative ones count from N; others out of range are an error, as
//            in ONNX Runtime's Gather
//   Y        (..., K) of W's type
// Attribute: format.
//
// aie.Q4NXGather(W, indices) -> Y: rows of W, dequantised (token embeddings that share one copy
// with the lm_head projection).
//   W       blocks of the shape BlocksShape (ops/weights.h), as for Q4NXMatMul
//   indices (...) int32 or int64; negative ones count from N, others out of range give zeros
//   Y       (..., K)
// Attributes: K, N, bits, format, group, minima and type as for Q4NXMatMul, dtype (TensorProto data
// type of Y: FLOAT, FLOAT16 or BFLOAT16).
#include "base/error.h"
#include "ops/op.h"
#include "ops/weights.h"

namespace ort_aie {
namespace {

template <typename T>
void CheckIndices(const T* indices, int64_t count, int64_t n) {
  for (int64_t i = 0; i < count; ++i) {
    Require(indices[i] >= -n && indices[i] < n, "input indices has ", indices[i], " as element ", i,
            ", expected ", -n, " to ", n - 1, ": W has ", n, " rows");
  }
}

class Gather final : public Op {
 public:
  enum Input { kW, kIndices, kInputCount };

  explicit Gather(const GatherStep& step) : step_(step) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor& indices = inputs[kIndices];
    Require(indices.type == DataType::kInt32 || indices.type == DataType::kInt64,
            "input indices must be int32 or int64, got ", NameOf(indices.type));
    outputs[0] = {step_.type, indices.shape};
    outputs[0].shape.push_back(step_.k);
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor& indices = inputs[kIndices];
    const int64_t count = ElementCount(indices.shape).As("input indices");
    if (step_.is_table && indices.type == DataType::kInt64) {
      CheckIndices(indices.as<int64_t>(), count, step_.n);
    } else if (step_.is_table) {
      CheckIndices(indices.as<int32_t>(), count, step_.n);
    }
    if (count == 0) return;
    auto& step = std::get<GatherStep>(plan.steps.emplace_back(step_));
    step.count = count;
    step.indices = indices.data;
    step.index_type = indices.type;
    step.y = buffers[0];
  }

 private:
  const GatherStep step_;  // without what a call gives
};

std::unique_ptr<Op> MakeGather(const NodeInfo& info, const Options&) {
  const Tensor w = info.ConstantInput(Gather::kW);
  Require(static_cast<bool>(w), "input W must be a constant initializer");
  RequireFloat("W", w);
  Require(w.shape.size() == 2 && w.shape[1] > 0, "input W must be (N, K), got ", w.shape);
  const Size bytes = ByteCount(w.type, w.shape);
  Require(bytes == w.bytes, "input W has ", w.bytes, " bytes, expected ", bytes, " for ",
          NameOf(w.type), " ", w.shape);
  return std::make_unique<Gather>(GatherStep{.weights = w.as<uint8_t>(),
                                             .k = w.shape[1],
                                             .n = w.shape[0],
                                             .type = w.type,
                                             .is_table = true});
}

std::unique_ptr<Op> MakeQ4NXGather(const NodeInfo& info, const Options&) {
  const Weights w = CheckWeights("W", ReadWeightAttributes(info), info.ConstantInput(Gather::kW));
  const DataType type = FloatDtype(info, kOnnxFloat);
  return std::make_unique<Gather>(
      GatherStep{.weights = w.blocks, .k = w.k, .n = w.n, .type = type, .form = w.form});
}

void InferTable(const ShapeContext& context) {
  const auto table = RequiredInput(context, Gather::kW, "W");
  auto value = RequiredInput(context, Gather::kIndices, "indices");
  value.type = table.type;
  value.dims.push_back(table.dims.size() == 2 ? table.dims[1] : ShapeContext::Dim{});
  context.SetOutput(0, value);
}

void InferWeights(const ShapeContext& context) {
  auto value = RequiredInput(context, Gather::kIndices, "indices");
  value.type = NumberOf(TypeOfNumber(context.Int("dtype", kOnnxFloat)));
  value.dims.push_back(DimOf(context, "K"));
  context.SetOutput(0, value);
}

}  // namespace

OpDescription DescribeGather() {
  return {.name = "Gather",
          .inputs = Gather::kInputCount,
          .required_inputs = Gather::kInputCount,
          .create = MakeGather,
          .infer = InferTable};
}

OpDescription DescribeQ4NXGather() {
  return WithForm({.name = "Q4NXGather",
                   .inputs = Gather::kInputCount,
                   .required_inputs = Gather::kInputCount,
                   .attributes = {RequiredSize("K"), RequiredSize("N"), {.name = "dtype"}},
                   .create = MakeQ4NXGather,
                   .infer = InferWeights,
                   .anchor = true});
}

}  // namespace ort_aie
