// Projections, gated MLPs and rows of an embedding for ONNX Runtime.
#include <algorithm>

#include "ops/gated_mlp.h"
#include "ops/matmul.h"
#include "ops/q4nx_gather.h"
#include "ort/custom_op.h"

namespace ort_aie {
namespace {

// The form that the name of an op sets, if it does.
using Form = std::optional<WeightForm>;

WeightAttributes ReadWeightAttributes(const NodeInfo& info, Form form) {
  return {info.Int("K", 0), info.Int("N", 0), info.Int("bits", 4), info.Int("format", 0), form};
}

MatMulAttributes ReadAttributes(const NodeInfo& info, Form form) {
  return {ReadWeightAttributes(info, form), info.Int("accuracy_level", 0), info.Int("symmetric", 0),
          info.Float("norm_epsilon", 0.0f)};
}

// Output `sum` exists where input skip is given.
void* SumOutput(const KernelContext& context, const Tensor& a, const Tensor& skip) {
  return skip ? context.Output(1, a.type, a.shape) : nullptr;
}

class MatMulKernel final : public Kernel {
 public:
  enum Input { kA, kWeights, kBias, kNormWeight, kSkip, kInputCount };

  MatMulKernel(const NodeInfo& info, Form form)
      : options_(ReadOptions(info)),
        op_("W", ReadAttributes(info, form), info.ConstantInput(kWeights), options_) {}

  void Compute(const KernelContext& context) const override {
    const MatMul::Inputs inputs = {context.Input(kA), context.Input(kBias),
                                   context.Input(kNormWeight), context.Input(kSkip)};
    void* y = context.Output(0, inputs.a.type, op_.OutputShape(inputs.a));
    void* sum = SumOutput(context, inputs.a, inputs.skip);
    options_.target->Execute(op_.MakePlan(inputs, y, sum, context.memory()),
                             OrtThreadPool(context));
  }

 private:
  const SessionOptions options_;
  const MatMul op_;
};

class GatedMLPKernel final : public Kernel {
 public:
  enum Input { kA, kGate, kUp, kNormWeight, kSkip, kInputCount };

  GatedMLPKernel(const NodeInfo& info, Form form)
      : options_(ReadOptions(info)),
        op_(ReadAttributes(info, form), info.String("activation"), info.ConstantInput(kGate),
            info.ConstantInput(kUp), options_) {}

  void Compute(const KernelContext& context) const override {
    const GatedMLP::Inputs inputs = {context.Input(kA), context.Input(kNormWeight),
                                     context.Input(kSkip)};
    void* y = context.Output(0, inputs.a.type, op_.OutputShape(inputs.a));
    void* sum = SumOutput(context, inputs.a, inputs.skip);
    options_.target->Execute(op_.MakePlan(inputs, y, sum, context.memory()),
                             OrtThreadPool(context));
  }

 private:
  const SessionOptions options_;
  const GatedMLP op_;
};

class GatherKernel final : public Kernel {
 public:
  explicit GatherKernel(const NodeInfo& info)
      : options_(ReadOptions(info)),
        op_({ReadWeightAttributes(info, {}),
             FromOnnxType(info.Int("dtype", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT))},
            info.ConstantInput(0)) {}

  void Compute(const KernelContext& context) const override {
    const Tensor indices = context.Input(1);
    void* y = context.Output(0, op_.type(), op_.OutputShape(indices));
    options_.target->Execute(op_.MakePlan(indices, y, context.memory()), OrtThreadPool(context));
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

// K with weights of `form`, or of the form that a node's bits say.
template <typename K, WeightForm... form>
OpDescription Projection(const char* name, size_t required_inputs) {
  return {.name = name,
          .inputs = K::kInputCount,
          .required_inputs = required_inputs,
          .outputs = 2,
          .required_outputs = 1,
          .create = [](const NodeInfo& info) -> std::unique_ptr<Kernel> {
            return std::make_unique<K>(info, Form{form...});
          },
          .infer = InferProjection};
}

}  // namespace

const OpDescription& Q4NXMatMulDescription() {
  static const OpDescription description = Projection<MatMulKernel>("Q4NXMatMul", 2);
  return description;
}

const OpDescription& GemmDescription() {
  static const OpDescription description = Projection<MatMulKernel, WeightForm::kBf16>("GEMM", 2);
  return description;
}

const OpDescription& Q4NXGatedMLPDescription() {
  static const OpDescription description = Projection<GatedMLPKernel>("Q4NXGatedMLP", 3);
  return description;
}

const OpDescription& GatedGemmDescription() {
  static const OpDescription description =
      Projection<GatedMLPKernel, WeightForm::kBf16>("GatedGEMM", 3);
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
