#include "ops/moe.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "ops/op.h"

namespace ort_aie {
namespace {

Activation ActivationNamed(const std::string& name, bool gated) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "relu") return Activation::kRelu;
  if (name == "none") return Activation::kNone;
  if (name == "swiglu" && gated) return Activation::kSwiglu;
  Fail(ErrorCode::kInvalidGraph,
       "attribute activation must be silu, gelu_tanh, relu, none, or with W_up swiglu, got '", name,
       "'");
}

const float* BiasOf(const char* name, const Tensor& bias, int64_t experts, int64_t n) {
  if (!bias) return nullptr;
  const Shape expected = {experts, n};
  RequireTensor(name, bias, DataType::kFloat32, expected);
  Require(ByteCount(bias.type, expected) == bias.bytes, "input ", name, " has ", bias.bytes,
          " bytes, expected ", ByteCount(bias.type, expected));
  return bias.as<float>();
}

class MoEOp final : public Op {
 public:
  enum Input {
    kX,
    kRouter,
    kGate,
    kDown,
    kUp,
    kGateBias,
    kUpBias,
    kDownBias,
    kRouterWeights,
    kInputCount
  };

  MoEOp(const NodeInfo& info, const Options& options)
      : op_(Attributes(info),
            {info.ConstantInput(kGate), info.ConstantInput(kDown), info.ConstantInput(kUp),
             info.ConstantInput(kGateBias), info.ConstantInput(kUpBias),
             info.ConstantInput(kDownBias)},
            options) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    op_.Check(Of(inputs));
    outputs[0] = {inputs[kX].type, inputs[kX].shape};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append(Of(inputs), buffers[0], plan);
  }

 private:
  static MoE::Inputs Of(std::span<const Tensor> inputs) {
    return {inputs[kX], inputs[kRouter], inputs[kRouterWeights]};
  }
  static MoEAttributes Attributes(const NodeInfo& info) {
    const float infinity = std::numeric_limits<float>::infinity();
    return {.k = info.Int("K", 0),
            .n = info.Int("N", 0),
            .experts = info.Int("experts", 0),
            .top_k = info.Int("top_k", 0),
            .form = ReadWeightAttributes(info),
            .down_bits = info.Int("down_bits", 4),
            .down_type = info.String("down_type"),
            .accuracy_level = info.Int("accuracy_level", 0),
            .symmetric = info.Int("symmetric", 0),
            .normalize = info.Int("normalize", 0),
            .activation = info.String("activation"),
            .swiglu = {info.Float("alpha", 1), info.Float("beta", 0), info.Float("limit", infinity),
                       info.Int("limit_after", 0) == 1}};
  }

  const MoE op_;
};

void InferMoE(const ShapeContext& context) {
  auto value = context.Input(0);
  if (!value) Fail(ErrorCode::kInvalidGraph, "input X is missing");
  if (value->dims.empty()) value->dims.resize(3);
  value->dims.back() = {std::max<int64_t>(-1, context.Int("K", -1)), ""};
  context.SetOutput(0, *value);
}

}  // namespace

MoE::MoE(const MoEAttributes& attributes, const Weights& weights, const Options& options) {
  const auto& [k, n, experts, top_k, form, down_bits, down_type, accuracy_level, symmetric,
               normalize, activation, swiglu] = attributes;
  Require(experts > 0 && experts <= kMostExperts && top_k > 0 && top_k <= experts,
          "attributes experts and top_k must be 1 <= top_k <= experts <= ", kMostExperts,
          ", got experts=", experts, " top_k=", top_k);
  const bool gated = static_cast<bool>(weights.up);
  WeightAttributes of_in = form, of_out = form;
  of_in.k = of_out.n = k;
  of_in.n = of_out.k = n;
  of_out.bits = down_bits;
  of_out.type = down_type;
  const auto gate = CheckWeights("W_gate", of_in, weights.gate, experts);
  const auto down = CheckWeights("W_down", of_out, weights.down, experts);
  step_.gate = gate.blocks;
  step_.up = gated ? CheckWeights("W_up", of_in, weights.up, experts).blocks : nullptr;
  step_.down = down.blocks;
  step_.form = gate.form;
  step_.down_form = down.form;
  step_.gate_bias = BiasOf("bias_gate", weights.gate_bias, experts, n);
  step_.up_bias = BiasOf("bias_up", weights.up_bias, experts, n);
  step_.down_bias = BiasOf("bias_down", weights.down_bias, experts, k);
  Require(gated || step_.up_bias == nullptr, "input bias_up needs input W_up");
  step_.hidden = k;
  step_.inter = n;
  step_.experts = experts;
  step_.top_k = top_k;
  step_.normalize = normalize == 1;
  step_.activation = ActivationNamed(activation, gated);
  step_.swiglu = swiglu;
  Require(std::isfinite(swiglu.alpha) && swiglu.alpha != 0,
          "attribute alpha must be a number other than 0, got ", swiglu.alpha);
  step_.numerics = options.NumericsFor(accuracy_level);
  step_.symmetric = symmetric == 1;
  step_.kept = std::make_shared<KeptState>();
  step_.prompt_chunk = options.prompt_chunk;
}

void MoE::Check(const Inputs& inputs) const {
  const auto& [x, router, router_weights] = inputs;
  Require(IsFloat(x.type), "input X must be float, float16 or bfloat16, got ", NameOf(x.type));
  Require(!x.shape.empty() && x.shape.back() == step_.hidden, "input X must be (..., ",
          step_.hidden, "), got ", x.shape);
  const int64_t rows = ElementCount(x.shape).As("input X") / step_.hidden;
  Shape as_x = x.shape;
  as_x.back() = step_.experts;
  RequireTensor("router", router, x.type, router.shape == as_x ? as_x : Shape{rows, step_.experts});
  if (router_weights) {
    RequireTensor("router_weights", router_weights, x.type, {rows, step_.experts});
  }
}

void MoE::Append(const Inputs& inputs, void* y, Plan& plan) const {
  const int64_t rows = ElementCount(inputs.x.shape).As("input X") / step_.hidden;
  if (rows == 0) return;
  auto& step = std::get<MoEStep>(plan.steps.emplace_back(step_));
  step.rows = rows;
  step.x = inputs.x.data;
  step.router = inputs.router.data;
  step.router_weights = inputs.router_weights ? inputs.router_weights.data : nullptr;
  step.y = y;
  step.type = inputs.x.type;
}

const OpDescription& Q4NXMoEDescription() {
  static const OpDescription description = {
      .name = "Q4NXMoE",
      .inputs = MoEOp::kInputCount,
      .required_inputs = 4,
      .outputs = 1,
      .required_outputs = 1,
      .attributes = WithForm({{.name = "K", .required = true, .least = 1},
                              {.name = "N", .required = true, .least = 1},
                              {.name = "experts", .required = true, .least = 1},
                              {.name = "top_k", .required = true, .least = 1},
                              {.name = "down_bits", .least = 2, .most = 8},
                              {.name = "down_type", .kind = AttributeRule::kString},
                              {.name = "accuracy_level"},
                              {.name = "symmetric", .least = 0, .most = 1},
                              {.name = "normalize", .least = 0, .most = 1},
                              {.name = "activation", .kind = AttributeRule::kString},
                              {.name = "alpha", .kind = AttributeRule::kFloat},
                              {.name = "beta", .kind = AttributeRule::kFloat},
                              {.name = "limit", .kind = AttributeRule::kFloat},
                              {.name = "limit_after", .least = 0, .most = 1}}),
      .create = [](const NodeInfo& info, const Options& options) -> std::unique_ptr<Op> {
        return std::make_unique<MoEOp>(info, options);
      },
      .infer = InferMoE,
      .anchor = true};
  return description;
}

}  // namespace ort_aie
