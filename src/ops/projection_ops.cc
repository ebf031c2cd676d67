// Projections, gated MLPs and rows of an embedding as ops.
#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "ops/gated_mlp.h"
#include "ops/matmul.h"
#include "ops/op.h"
#include "ops/q4nx_gather.h"

namespace ort_aie {
namespace {

WeightAttributes ReadWeights(const NodeInfo& info, bool bf16) {
  WeightAttributes attributes = ReadWeightAttributes(info);
  attributes.k = info.Int("K", 0);
  attributes.n = info.Int("N", 0);
  attributes.bf16 = bf16;
  return attributes;
}

MatMulAttributes ReadAttributes(const NodeInfo& info, bool bf16) {
  return {ReadWeights(info, bf16), info.Int("accuracy_level", 0), info.Int("symmetric", 0),
          info.Float("norm_epsilon", 0.0f), info.Int("logits", 0)};
}

// Describes Y, and sum if input skip is given.
void DescribeProjection(const Tensor& a, const Tensor& skip, Shape y,
                        std::span<Op::Output> outputs) {
  outputs[0] = {a.type, std::move(y)};
  if (skip) outputs[1] = {a.type, a.shape};
}

class MatMulOp final : public Op {
 public:
  enum Input { kA, kWeights, kBias, kNormWeight, kSkip, kInputCount };

  MatMulOp(const NodeInfo& info, const Options& options, bool bf16)
      : op_("W", ReadAttributes(info, bf16), info.ConstantInput(kWeights), options) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    DescribeProjection(inputs[kA], inputs[kSkip], op_.OutputShape(inputs[kA]), outputs);
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append({inputs[kA], inputs[kBias], inputs[kNormWeight], inputs[kSkip]}, buffers[0],
               buffers[1], plan);
  }

 private:
  const MatMul op_;
};

class GatedMLPOp final : public Op {
 public:
  enum Input { kA, kGate, kUp, kNormWeight, kSkip, kInputCount };

  GatedMLPOp(const NodeInfo& info, const Options& options, bool bf16)
      : op_(ReadAttributes(info, bf16), info.String("activation"), info.ConstantInput(kGate),
            info.ConstantInput(kUp), options) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    DescribeProjection(inputs[kA], inputs[kSkip], op_.OutputShape(inputs[kA]), outputs);
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append({inputs[kA], inputs[kNormWeight], inputs[kSkip]}, buffers[0], buffers[1], plan);
  }

 private:
  const GatedMLP op_;
};

class GatherOp final : public Op {
 public:
  explicit GatherOp(const NodeInfo& info)
      : op_({ReadWeights(info, false), TypeOfNumber(info.Int("dtype", kOnnxFloat))},
            info.ConstantInput(0)) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    outputs[0] = {op_.type(), op_.OutputShape(inputs[1])};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append(inputs[1], buffers[0], plan);
  }

 private:
  const Q4NXGather op_;
};

// Only Y. The model states the type and shape of sum: if a node with skip lacked the output, ONNX
// Runtime would write behind its list of outputs, which it does not check.
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
  value->type = NumberOf(TypeOfNumber(context.Int("dtype", kOnnxFloat)));
  value->dims.push_back({std::max<int64_t>(-1, context.Int("K", -1)), ""});
  context.SetOutput(0, *value);
}

// K with weights in bfloat16, or quantised ones, whose form its attributes state.
template <typename K, bool kBf16>
OpDescription Projection(const char* name, size_t required_inputs) {
  OpDescription description = {
      .name = name,
      .inputs = K::kInputCount,
      .required_inputs = required_inputs,
      .outputs = 2,
      .required_outputs = 1,
      .attributes = {{.name = "K", .required = true, .least = 1},
                     {.name = "N", .required = true, .least = 1},
                     {.name = "norm_epsilon", .kind = AttributeRule::kFloat}},
      .create = [](const NodeInfo& info, const Options& options) -> std::unique_ptr<Op> {
        return std::make_unique<K>(info, options, kBf16);
      },
      .infer = InferProjection,
      .anchor = true};
  if (kBf16) {
    description.attributes.push_back({.name = "format", .required = true});
  } else {
    description.attributes = WithForm(std::move(description.attributes));
    description.attributes.push_back({.name = "accuracy_level"});
    description.attributes.push_back({.name = "symmetric", .least = 0, .most = 1});
  }
  if (std::is_same_v<K, MatMulOp>) {
    description.attributes.push_back({.name = "logits", .least = 0, .most = 1});
  }
  if (std::is_same_v<K, GatedMLPOp>) {
    description.attributes.push_back({.name = "activation", .kind = AttributeRule::kString});
  }
  return description;
}

}  // namespace

const OpDescription& Q4NXMatMulDescription() {
  static const OpDescription description = Projection<MatMulOp, false>("Q4NXMatMul", 2);
  return description;
}

const OpDescription& GemmDescription() {
  static const OpDescription description = Projection<MatMulOp, true>("GEMM", 2);
  return description;
}

const OpDescription& Q4NXGatedMLPDescription() {
  static const OpDescription description = Projection<GatedMLPOp, false>("Q4NXGatedMLP", 2);
  return description;
}

const OpDescription& GatedGemmDescription() {
  static const OpDescription description = Projection<GatedMLPOp, true>("GatedGEMM", 2);
  return description;
}

const OpDescription& Q4NXGatherDescription() {
  static const OpDescription description = {
      .name = "Q4NXGather",
      .inputs = 2,
      .required_inputs = 2,
      .outputs = 1,
      .required_outputs = 1,
      .attributes = WithForm({{.name = "K", .required = true, .least = 1},
                              {.name = "N", .required = true, .least = 1},
                              {.name = "dtype"}}),
      .create = [](const NodeInfo& info, const Options&) -> std::unique_ptr<Op> {
        return std::make_unique<GatherOp>(info);
      },
      .infer = InferGather,
      .anchor = true};
  return description;
}

}  // namespace ort_aie
