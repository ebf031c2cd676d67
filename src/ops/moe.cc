// aie.Q4NXMoE(X, router, W_gate, W_down, W_up?, bias_gate?, bias_up?, bias_down?, router_weights?,
// choice_bias?) -> Y: com.microsoft.QMoE with its weights in blocks (docs/experts.md has the
// contract).
//   X                  (..., K) float, float16 or bfloat16
//   router             (rows, experts), or (..., experts) as X, of X's type: logits. Each row uses
//                      the `top_k` largest
//   W_gate, W_up       (experts, blocks of N x K): FC1 and FC3, or the halves of a fused FC1
//   W_down             (experts, blocks of K x N): FC2
//   bias_gate, bias_up (experts, N) float
//   bias_down          (experts, K) float
//   router_weights     (rows, experts); without it, the softmax of the chosen logits weights the
//                      experts
//   choice_bias        (experts) float, for scores that are sigmoids
//   Y                  as X
// Attributes: K, N, experts, top_k; format, group and minima as for Q4NXMatMul; bits and type (of
// W_gate and W_up), up_type (if W_up has another type), down_bits and down_type; activation (silu,
// gelu_tanh, relu, none; with W_up also swiglu, with alpha, beta, limit and limit_after); normalize
// (of router_weights); accuracy_level and symmetric as for Q4NXMatMul. With scores = sigmoid, each
// row uses the `top_k` largest of sigmoid(router) + choice_bias, weighted by sigmoid(router) over
// its sum + epsilon, times factor.
#include <cmath>
#include <limits>
#include <memory>

#include "base/error.h"
#include "ops/op.h"
#include "ops/routing.h"
#include "ops/weights.h"

namespace ort_aie {
namespace {

Activation ExpertActivation(const std::string& name, bool gated) {
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

class MoE final : public Op {
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
    kChoiceBias,
    kInputCount
  };

  MoE(const NodeInfo& info, const Options& options) {
    const WeightAttributes of_gate = ReadWeightAttributes(info);
    const int64_t k = of_gate.k, n = of_gate.n;
    const int64_t experts = info.Int("experts", 0), top_k = info.Int("top_k", 0);
    Require(experts > 0 && experts <= kMostExperts && top_k > 0 && top_k <= experts,
            "attributes experts and top_k must be 1 <= top_k <= experts <= ", kMostExperts,
            ", got experts=", experts, " top_k=", top_k);
    WeightAttributes of_up = of_gate, of_out = of_gate;
    if (const std::string type = info.String("up_type"); !type.empty()) {
      Require(!of_gate.type.empty(), "attribute up_type needs attribute type");
      of_up.type = type;
    }
    of_out.k = n;
    of_out.n = k;
    of_out.bits = info.Int("down_bits", 4);
    of_out.type = info.String("down_type");
    const Tensor up = info.ConstantInput(kUp);
    const auto gate = CheckWeights("W_gate", of_gate, info.ConstantInput(kGate), experts);
    const auto down = CheckWeights("W_down", of_out, info.ConstantInput(kDown), experts);
    step_.gate = gate.blocks;
    step_.down = down.blocks;
    step_.form = step_.up_form = gate.form;
    if (up) {
      const auto weights = CheckWeights("W_up", of_up, up, experts);
      step_.up = weights.blocks;
      step_.up_form = weights.form;
    }
    step_.down_form = down.form;
    step_.gate_bias = BiasOf("bias_gate", info.ConstantInput(kGateBias), experts, n);
    step_.up_bias = BiasOf("bias_up", info.ConstantInput(kUpBias), experts, n);
    step_.down_bias = BiasOf("bias_down", info.ConstantInput(kDownBias), experts, k);
    Require(up || step_.up_bias == nullptr, "input bias_up needs input W_up");
    step_.hidden = k;
    step_.inter = n;
    step_.experts = experts;
    step_.top_k = top_k;
    step_.normalize = info.Int("normalize", 0) == 1;
    ReadScores(info);
    step_.activation = ExpertActivation(info.String("activation"), up.present);
    step_.swiglu = {info.Float("alpha", 1), info.Float("beta", 0),
                    info.Float("limit", std::numeric_limits<float>::infinity()),
                    info.Int("limit_after", 0) == 1};
    Require(std::isfinite(step_.swiglu.alpha) && step_.swiglu.alpha != 0,
            "attribute alpha must be a number other than 0, got ", step_.swiglu.alpha);
    step_.numerics = options.NumericsFor(info.Int("accuracy_level", 0));
    step_.symmetric = info.Int("symmetric", 0) == 1;
    step_.kept = std::make_shared<KeptState>();
    step_.prompt_chunk = options.prompt_chunk;
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor &x = inputs[kX], &router = inputs[kRouter], &weights = inputs[kRouterWeights];
    RequireFloat("X", x);
    Require(!x.shape.empty() && x.shape.back() == step_.hidden, "input X must be (..., ",
            step_.hidden, "), got ", x.shape);
    const int64_t rows = RowsOf(x);
    Shape as_x = x.shape;
    as_x.back() = step_.experts;
    RequireTensor("router", router, x.type,
                  router.shape == as_x ? as_x : Shape{rows, step_.experts});
    Require(!weights || !step_.sigmoid, "input router_weights is for scores without sigmoid");
    if (weights) RequireTensor("router_weights", weights, x.type, {rows, step_.experts});
    outputs[0] = {x.type, x.shape};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor& x = inputs[kX];
    const int64_t rows = RowsOf(x);
    if (rows == 0) return;
    auto& step = std::get<MoEStep>(plan.steps.emplace_back(step_));
    step.rows = rows;
    step.x = x.data;
    step.router = inputs[kRouter].data;
    step.router_weights = inputs[kRouterWeights] ? inputs[kRouterWeights].data : nullptr;
    step.y = buffers[0];
    step.type = x.type;
  }

 private:
  void ReadScores(const NodeInfo& info) {
    const std::string scores = info.String("scores");
    const Tensor bias = info.ConstantInput(kChoiceBias);
    Require(scores.empty() || scores == "sigmoid", "attribute scores must be sigmoid, got '",
            scores, "'");
    step_.sigmoid = !scores.empty();
    Require(step_.sigmoid || !bias, "input choice_bias needs attribute scores");
    if (bias) {
      RequireTensor("choice_bias", bias, DataType::kFloat32, {step_.experts});
      step_.choice_bias = bias.as<float>();
    }
    step_.epsilon = info.Float("epsilon", 0);
    step_.factor = info.Float("factor", 1);
  }

  int64_t RowsOf(const Tensor& x) const {
    return ElementCount(x.shape).As("input X") / step_.hidden;
  }

  MoEStep step_{};  // without what a call gives
};

void InferMoE(const ShapeContext& context) {
  auto value = RequiredActivations(context, "X");
  value.dims.back() = DimOf(context, "K");
  context.SetOutput(0, value);
}

}  // namespace

OpDescription DescribeQ4NXMoE() {
  return WithForm({.name = "Q4NXMoE",
                   .inputs = MoE::kInputCount,
                   .required_inputs = 4,
                   .attributes = {RequiredSize("K"),
                                  RequiredSize("N"),
                                  RequiredSize("experts"),
                                  RequiredSize("top_k"),
                                  TextAttribute("up_type"),
                                  {.name = "down_bits", .least = 2, .most = 8},
                                  TextAttribute("down_type"),
                                  {.name = "accuracy_level"},
                                  {.name = "symmetric", .least = 0, .most = 1},
                                  {.name = "normalize", .least = 0, .most = 1},
                                  TextAttribute("scores"),
                                  FloatAttribute("epsilon"),
                                  FloatAttribute("factor"),
                                  TextAttribute("activation"),
                                  FloatAttribute("alpha"),
                                  FloatAttribute("beta"),
                                  FloatAttribute("limit"),
                                  {.name = "limit_after", .least = 0, .most = 1}},
                   .create = MakeOp<MoE>,
                   .infer = InferMoE,
                   .anchor = true});
}

}  // namespace ort_aie
