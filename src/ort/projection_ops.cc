// aie.Q4NXMatMul, aie.Q4NXGatedMLP and aie.Q4NXGather for ONNX Runtime.
#include <algorithm>

#include "ops/q4nx_gated_mlp.h"
#include "ops/q4nx_gather.h"
#include "ops/q4nx_matmul.h"
#include "ort/custom_op.h"

namespace ort_aie {
namespace {

Q4NXWeightAttributes ReadWeightAttributes(const NodeInfo& info) {
  return {info.Int("K", 0), info.Int("N", 0), info.Int("bits", 4), info.Int("format", 0)};
}

Q4NXMatMulAttributes ReadAttributes(const NodeInfo& info) {
  return {ReadWeightAttributes(info), info.Int("accuracy_level", 0), info.Int("symmetric", 0),
          info.Float("norm_epsilon", 0.0f)};
}

// Output `sum` exists where input skip is given.
void* SumOutput(const KernelContext& context, const Tensor& a, const Tensor& skip) {
  return skip ? context.Output(1, a.type, a.shape) : nullptr;
}

class MatMulKernel final : public Kernel {
 public:
  enum Input { kA, kWeights, kBias, kNormWeight, kSkip, kInputCount };

  explicit MatMulKernel(const NodeInfo& info)
      : options_(ReadOptions(info)),
        op_("W", ReadAttributes(info), info.ConstantInput(kWeights), options_) {}

  void Compute(const KernelContext& context) const override {
    const Q4NXMatMul::Inputs inputs = {context.Input(kA), context.Input(kBias),
                                       context.Input(kNormWeight), context.Input(kSkip)};
    void* y = context.Output(0, inputs.a.type, op_.OutputShape(inputs.a));
    void* sum = SumOutput(context, inputs.a, inputs.skip);
    options_.target->Execute(op_.MakePlan(inputs, y, sum), OrtThreadPool(context));
  }

 private:
  const SessionOptions options_;
  const Q4NXMatMul op_;
};

class GatedMLPKernel final : public Kernel {
 public:
  enum Input { kA, kGate, kUp, kNormWeight, kSkip, kInputCount };

  explicit GatedMLPKernel(const NodeInfo& info)
      : options_(ReadOptions(info)),
        op_(ReadAttributes(info), info.String("activation"), info.ConstantInput(kGate),
            info.ConstantInput(kUp), options_) {}

  void Compute(const KernelContext& context) const override {
    const Q4NXGatedMLP::Inputs inputs = {context.Input(kA), context.Input(kNormWeight),
                                         context.Input(kSkip)};
    void* y = context.Output(0, inputs.a.type, op_.OutputShape(inputs.a));
    void* sum = SumOutput(context, inputs.a, inputs.skip);
    options_.target->Execute(op_.MakePlan(inputs, y, sum), OrtThreadPool(context));
  }

 private:
  const SessionOptions options_;
  const Q4NXGatedMLP op_;
};

class GatherKernel final : public Kernel {
 public:
  explicit GatherKernel(const NodeInfo& info)
      : options_(ReadOptions(info)),
        op_({ReadWeightAttributes(info),
             FromOnnxType(info.Int("dtype", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT))},
            info.ConstantInput(0)) {}

  void Compute(const KernelContext& context) const override {
    const Tensor indices = context.Input(1);
    void* y = context.Output(0, op_.type(), op_.OutputShape(indices));
    options_.target->Execute(op_.MakePlan(indices, y), OrtThreadPool(context));
  }

 private:
  const SessionOptions options_;
  const Q4NXGather op_;
};

// Y alone. The type and shape of sum stand in the model: a node with skip that lacks it would have
// ONNX Runtime write behind its list of outputs, which it does not check.
void InferProjection(const ShapeContext& context) {
  auto value = context.Input(0);
  if (!value) Fail(ErrorCode::kInvalidGraph, "input A is missing");
  // An unknown rank arrives as 0; projections of language models are (batch, sequence, channels).
  if (value->dims.empty()) value->dims.resize(3);
  value->dims.back() = {std::max<int64_t>(-1, context.Int("N", -1)), ""};
  context.SetOutput(0, *value);
}

void InferGather(const ShapeContext& context) {
  auto value = context.Input(1);
  if (!value) Fail(ErrorCode::kInvalidGraph, "Q4NXGather has no input indices");
  value->type = ToOnnxType(FromOnnxType(context.Int("dtype", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)));
  value->dims.push_back({std::max<int64_t>(-1, context.Int("K", -1)), ""});
  context.SetOutput(0, *value);
}

}  // namespace

const OpDescription& Q4NXMatMulDescription() {
  static const OpDescription description = {
      .name = "Q4NXMatMul",
      .inputs = MatMulKernel::kInputCount,
      .required_inputs = 2,
      .outputs = 2,
      .required_outputs = 1,
      .create = [](const NodeInfo& info) -> std::unique_ptr<Kernel> {
        return std::make_unique<MatMulKernel>(info);
      },
      .infer = InferProjection};
  return description;
}

const OpDescription& Q4NXGatedMLPDescription() {
  static const OpDescription description = {
      .name = "Q4NXGatedMLP",
      .inputs = GatedMLPKernel::kInputCount,
      .required_inputs = 3,
      .outputs = 2,
      .required_outputs = 1,
      .create = [](const NodeInfo& info) -> std::unique_ptr<Kernel> {
        return std::make_unique<GatedMLPKernel>(info);
      },
      .infer = InferProjection};
  return description;
}

const OpDescription& Q4NXGatherDescription() {
  static const OpDescription description = {
      .name = "Q4NXGather",
      .inputs = 2,
      .required_inputs = 2,
      .outputs = 1,
      .required_outputs = 1,
      .create = [](const NodeInfo& info) -> std::unique_ptr<Kernel> {
        return std::make_unique<GatherKernel>(info);
      },
      .infer = InferGather};
  return description;
}

}  // namespace ort_aie
