// The ops between projections, and rows of a table.
#include "base/error.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/gather.h"
#include "ops/norm.h"
#include "ops/op.h"
#include "ops/select_rows.h"

namespace ort_aie {
namespace {

class RMSNormOp final : public Op {
 public:
  enum Input { kA, kWeight, kSkip, kInputCount };

  explicit RMSNormOp(const NodeInfo& info)
      : op_({info.Int("K", 0), info.Int("format", 0), info.Float("epsilon", 0.0f)}) {
    const Tensor weight = info.ConstantInput(kWeight);
    if (weight) RequireTensor("weight", weight, weight.type, {info.Int("K", 0)});
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    outputs[0] = {inputs[kA].type, op_.OutputShape(inputs[kA])};
    if (inputs[kSkip]) outputs[1] = outputs[0];
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append({inputs[kA], inputs[kWeight], inputs[kSkip]}, buffers[0], buffers[1], plan);
  }

 private:
  const RMSNorm op_;
};

class GatedRMSNormOp final : public Op {
 public:
  enum Input { kA, kWeight, kGate, kInputCount };

  explicit GatedRMSNormOp(const NodeInfo& info)
      : op_({info.Int("K", 0), info.Int("format", 0), info.Float("epsilon", 0.0f),
             info.String("activation")}) {
    const Tensor weight = info.ConstantInput(kWeight);
    if (weight) RequireTensor("weight", weight, weight.type, {info.Int("K", 0)});
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    outputs[0] = {inputs[kA].type, op_.OutputShape(inputs[kA])};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append({inputs[kA], inputs[kWeight], inputs[kGate]}, buffers[0], plan);
  }

 private:
  const GatedRMSNorm op_;
};

class ElementwiseOp final : public Op {
 public:
  enum Input { kA, kB, kInputCount };

  ElementwiseOp(const NodeInfo& info, Function function) : op_({function, info.Int("format", 0)}) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    outputs[0] = {inputs[kA].type, op_.OutputShape(inputs[kA])};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append({inputs[kA], inputs[kB]}, buffers[0], plan);
  }

 private:
  const Elementwise op_;
};

class CastOp final : public Op {
 public:
  explicit CastOp(const NodeInfo& info)
      : op_({TypeOfNumber(info.Int("dtype", 0)), info.Int("format", 0)}) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    outputs[0] = {op_.type(), op_.OutputShape(inputs[0])};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append(inputs[0], buffers[0], plan);
  }

 private:
  const Cast op_;
};

class TableOp final : public Op {
 public:
  explicit TableOp(const NodeInfo& info) : op_(info.Int("format", 0), info.ConstantInput(0)) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    outputs[0] = {op_.type(), op_.OutputShape(inputs[1])};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append(inputs[1], buffers[0], plan);
  }

 private:
  const Gather op_;
};

class SelectRowsOp final : public Op {
 public:
  enum Input { kA, kIndices, kInputCount };

  explicit SelectRowsOp(const NodeInfo& info) : op_(info.Int("format", 0)) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor& a = inputs[kA];
    outputs[0] = {a.type, op_.OutputShape(a, inputs[kIndices])};
    if (a.shape[1] == 1) outputs[0].same_as = kA;
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append(inputs[kA], inputs[kIndices], buffers[0], plan);
  }

 private:
  const SelectRows op_;
};

ShapeContext::Value Required(const ShapeContext& context, size_t index, const char* name) {
  auto value = context.Input(index);
  if (!value) Fail(ErrorCode::kInvalidGraph, "input ", name, " is missing");
  return *value;
}

// An unknown rank arrives as 0; tensors of language models are (batch, sequence, channels).
ShapeContext::Value RequiredA(const ShapeContext& context) {
  auto value = Required(context, 0, "A");
  if (value.dims.empty()) value.dims.resize(3);
  return value;
}

// Of A's type and shape. The model states the type and shape of sum, as for a projection.
void InferLikeA(const ShapeContext& context) { context.SetOutput(0, RequiredA(context)); }

void InferCast(const ShapeContext& context) {
  auto value = RequiredA(context);
  value.type = NumberOf(TypeOfNumber(context.Int("dtype", 0)));
  context.SetOutput(0, value);
}

void InferTable(const ShapeContext& context) {
  const auto table = Required(context, 0, "W");
  auto value = Required(context, 1, "indices");
  value.type = table.type;
  value.dims.push_back(table.dims.size() == 2 ? table.dims[1] : ShapeContext::Dim{});
  context.SetOutput(0, value);
}

void InferSelectRows(const ShapeContext& context) {
  auto value = Required(context, 0, "A");
  if (value.dims.empty()) value.dims.resize(3);
  if (value.dims.size() > 1) value.dims[1] = {1};
  context.SetOutput(0, value);
}

template <Function function>
OpDescription Binary(const char* name) {
  return {.name = name,
          .inputs = 2,
          .required_inputs = 2,
          .outputs = 1,
          .required_outputs = 1,
          .attributes = {{.name = "format", .required = true}},
          .create = [](const NodeInfo& info, const Options&) -> std::unique_ptr<Op> {
            return std::make_unique<ElementwiseOp>(info, function);
          },
          .infer = InferLikeA};
}

}  // namespace

const OpDescription& RMSNormDescription() {
  static const OpDescription description = {
      .name = "RMSNorm",
      .inputs = RMSNormOp::kInputCount,
      .required_inputs = 2,
      .outputs = 2,
      .required_outputs = 1,
      .attributes = {{.name = "format", .required = true},
                     {.name = "K", .required = true, .least = 1},
                     {.name = "epsilon", .kind = AttributeRule::kFloat}},
      .create = [](const NodeInfo& info, const Options&) -> std::unique_ptr<Op> {
        return std::make_unique<RMSNormOp>(info);
      },
      .infer = InferLikeA};
  return description;
}

const OpDescription& GatedRMSNormDescription() {
  static const OpDescription description = {
      .name = "GatedRMSNorm",
      .inputs = GatedRMSNormOp::kInputCount,
      .required_inputs = GatedRMSNormOp::kInputCount,
      .outputs = 1,
      .required_outputs = 1,
      .attributes = {{.name = "format", .required = true},
                     {.name = "K", .required = true, .least = 1},
                     {.name = "epsilon", .kind = AttributeRule::kFloat},
                     {.name = "activation", .kind = AttributeRule::kString}},
      .create = [](const NodeInfo& info, const Options&) -> std::unique_ptr<Op> {
        return std::make_unique<GatedRMSNormOp>(info);
      },
      .infer = InferLikeA};
  return description;
}

const OpDescription& AddDescription() {
  static const OpDescription description = Binary<Function::kAdd>("Add");
  return description;
}

const OpDescription& MulDescription() {
  static const OpDescription description = Binary<Function::kMultiply>("Mul");
  return description;
}

const OpDescription& ActivationDescription() {
  static const OpDescription description = {
      .name = "Activation",
      .inputs = 1,
      .required_inputs = 1,
      .outputs = 1,
      .required_outputs = 1,
      .attributes = {{.name = "format", .required = true},
                     {.name = "function", .kind = AttributeRule::kString}},
      .create = [](const NodeInfo& info, const Options&) -> std::unique_ptr<Op> {
        return std::make_unique<ElementwiseOp>(info, ActivationFunction(info.String("function")));
      },
      .infer = InferLikeA};
  return description;
}

const OpDescription& CastDescription() {
  static const OpDescription description = {
      .name = "Cast",
      .inputs = 1,
      .required_inputs = 1,
      .outputs = 1,
      .required_outputs = 1,
      .attributes = {{.name = "format", .required = true}, {.name = "dtype", .required = true}},
      .create = [](const NodeInfo& info, const Options&) -> std::unique_ptr<Op> {
        return std::make_unique<CastOp>(info);
      },
      .infer = InferCast};
  return description;
}

const OpDescription& GatherDescription() {
  static const OpDescription description = {
      .name = "Gather",
      .inputs = 2,
      .required_inputs = 2,
      .outputs = 1,
      .required_outputs = 1,
      .attributes = {{.name = "format", .required = true}},
      .create = [](const NodeInfo& info, const Options&) -> std::unique_ptr<Op> {
        return std::make_unique<TableOp>(info);
      },
      .infer = InferTable};
  return description;
}

const OpDescription& SelectRowsDescription() {
  static const OpDescription description = {
      .name = "SelectRows",
      .inputs = SelectRowsOp::kInputCount,
      .required_inputs = 2,
      .outputs = 1,
      .required_outputs = 1,
      .attributes = {{.name = "format", .required = true}},
      .create = [](const NodeInfo& info, const Options&) -> std::unique_ptr<Op> {
        return std::make_unique<SelectRowsOp>(info);
      },
      .infer = InferSelectRows,
      .passes_on = true};
  return description;
}

}  // namespace ort_aie
