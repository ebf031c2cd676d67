// aie.LinearAttention(query, key, value, past?, decay?, beta?) -> Y, present: attention on a state
// for each head instead of a cache, as com.microsoft.LinearAttention and ONNX's. What it computes:
// RecurrenceStep in ops/plan.h.
//   query    (batch, tokens, q_num_heads * key_dim) float, float16 or bfloat16
//   key      (batch, tokens, key heads * key_dim)
//   value    (batch, tokens, kv_num_heads * value_dim)
//   past     (batch, kv_num_heads, key_dim, value_dim); zeros if it is not given
//   decay    (batch, tokens, kv_num_heads), or times key_dim; beta (batch, tokens, kv_num_heads or
//   1) Y        (batch, tokens, the larger number of heads * value_dim) present  as past
// past and present have a type of their own. Either number of heads is a multiple of the other, and
// kv_num_heads of the key's. Attributes: q_num_heads, kv_num_heads, scale (0: 1 / sqrt(key_dim)),
// format.
//
// aie.LinearAttentionGate(a, bias, factor, b?) -> decay, beta?: its gates, as
// com.microsoft.LinearAttentionGate: decay = factor * softplus(a + bias), beta = sigmoid(b).
//   a, b, decay, beta  (..., heads) float, float16 or bfloat16
//   bias, factor       (heads) float
// Attribute: format.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/op.h"

namespace ort_aie {
namespace {

// More than any model has.
constexpr int64_t kMostStates = 1 << 16;

int64_t WidthOfHeads(int64_t heads, int64_t dim) { return (Size(heads) * dim).As("a token"); }

class LinearAttention final : public Op {
 public:
  enum Input { kQuery, kKey, kValue, kPast, kDecay, kBeta, kInputCount };

  explicit LinearAttention(const NodeInfo& info)
      : query_heads_(info.Int("q_num_heads", 0)),
        heads_(info.Int("kv_num_heads", 0)),
        scale_(info.Float("scale", 0)) {
    Require(query_heads_ > 0 && heads_ > 0 &&
                std::max(query_heads_, heads_) % std::min(query_heads_, heads_) == 0,
            "one of q_num_heads and kv_num_heads must be a multiple of the other, got ",
            query_heads_, " and ", heads_);
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor &query = inputs[kQuery], &value = inputs[kValue], &past = inputs[kPast];
    RequireFloat("query", query);
    const RecurrenceStep sizes = SizesIn(inputs);
    const auto rows = [&](int64_t width) { return Shape{sizes.batch, sizes.tokens, width}; };
    RequireTensor("query", query, query.type, rows(WidthOfHeads(query_heads_, sizes.key_dim)));
    RequireTensor("key", inputs[kKey], query.type,
                  rows(WidthOfHeads(sizes.key_heads, sizes.key_dim)));
    RequireTensor("value", value, query.type, rows(WidthOfHeads(heads_, sizes.value_dim)));
    if (inputs[kDecay]) RequireTensor("decay", inputs[kDecay], query.type, rows(sizes.decays));
    if (inputs[kBeta]) RequireTensor("beta", inputs[kBeta], query.type, rows(sizes.betas));
    const Shape state = {sizes.batch, heads_, sizes.key_dim, sizes.value_dim};
    if (past) {
      RequireFloat("past", past);
      RequireTensor("past", past, past.type, state);
    }
    outputs[0] = {query.type, rows(WidthOfHeads(std::max(query_heads_, heads_), sizes.value_dim))};
    outputs[1] = {past ? past.type : query.type, state};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output> outputs,
              std::span<void* const> buffers, Plan& plan) const override {
    RecurrenceStep step = SizesIn(inputs);
    if (step.batch == 0 || step.key_dim == 0 || step.value_dim == 0) return;
    step.query = inputs[kQuery].data;
    step.key = inputs[kKey].data;
    step.value = inputs[kValue].data;
    step.decay = inputs[kDecay].data;
    step.beta = inputs[kBeta].data;
    step.past = inputs[kPast].data;
    step.y = buffers[0];
    step.present = buffers[1];
    step.scale = scale_ != 0 ? scale_ : 1 / std::sqrt(static_cast<float>(step.key_dim));
    step.type = step.gate_type = inputs[kQuery].type;
    step.state_type = outputs[1].type;
    plan.steps.emplace_back(step);
  }

 private:
  // As far as each input says its own; Describe checks that they agree.
  RecurrenceStep SizesIn(std::span<const Tensor> inputs) const {
    const auto width = [&](Input input, const char* name) {
      const Shape& shape = inputs[input].shape;
      Require(shape.size() == 3, "input ", name, " must have three dimensions, got ", shape);
      return shape[2];
    };
    RecurrenceStep step = {};
    step.key_dim = width(kQuery, "query") / query_heads_;
    step.value_dim = width(kValue, "value") / heads_;
    step.batch = inputs[kQuery].shape[0];
    step.tokens = inputs[kQuery].shape[1];
    step.query_heads = query_heads_;
    step.heads = heads_;
    step.key_heads =
        step.key_dim == 0 ? 1 : std::max<int64_t>(width(kKey, "key") / step.key_dim, 1);
    Require(heads_ % step.key_heads == 0, "kv_num_heads, ", heads_,
            ", must be a multiple of the heads of input key, got ", step.key_heads);
    const bool by_channel = inputs[kDecay] && width(kDecay, "decay") != heads_;
    step.decays = by_channel ? WidthOfHeads(heads_, step.key_dim) : heads_;
    step.betas = inputs[kBeta] && width(kBeta, "beta") == 1 ? 1 : heads_;
    return step;
  }

  const int64_t query_heads_, heads_;
  const float scale_;
};

void InferLinearAttention(const ShapeContext& context) {
  auto query = RequiredActivations(context, "query");
  auto value = RequiredInput(context, LinearAttention::kValue, "value");
  query.dims.resize(3);
  value.dims.resize(3);
  const int64_t query_heads = context.Int("q_num_heads", 0), heads = context.Int("kv_num_heads", 0);
  const auto in_head = [](int64_t width, int64_t count) {
    return ShapeContext::Dim{width > 0 && count > 0 ? width / count : -1};
  };
  const auto key_dim = in_head(query.dims[2].value, query_heads);
  const auto value_dim = in_head(value.dims[2].value, heads);
  const auto past = context.Input(LinearAttention::kPast);
  context.SetOutput(1, {past ? past->type : query.type,
                        {query.dims[0], DimOf(context, "kv_num_heads"), key_dim, value_dim}});
  const Size width = Size(std::max(query_heads, heads)) * value_dim.value;
  query.dims[2] = {width.InRange() ? width.As("Y") : -1};
  context.SetOutput(0, query);
}

class LinearAttentionGate final : public Op {
 public:
  enum Input { kA, kBias, kFactor, kB, kInputCount };

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor &a = inputs[kA], &b = inputs[kB];
    RequireFloat("a", a);
    Require(!a.shape.empty(), "input a must be (..., heads), got ", a.shape);
    for (const Input input : {kBias, kFactor}) {
      RequireTensor(input == kBias ? "bias" : "factor", inputs[input], DataType::kFloat32,
                    {a.shape.back()});
    }
    outputs[0] = {a.type, a.shape};
    if (!b) return;
    RequireTensor("b", b, a.type, a.shape);
    outputs[1] = outputs[0];
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor& a = inputs[kA];
    const int64_t count = ElementCount(a.shape).As("input a");
    if (count == 0) return;
    plan.steps.emplace_back(GateStep{.rows = count / a.shape.back(),
                                     .heads = a.shape.back(),
                                     .a = a.data,
                                     .b = inputs[kB].data,
                                     .bias = inputs[kBias].as<float>(),
                                     .factor = inputs[kFactor].as<float>(),
                                     .decay = buffers[0],
                                     .beta = inputs[kB] ? buffers[1] : nullptr,
                                     .type = a.type});
  }
};

}  // namespace

OpDescription DescribeLinearAttention() {
  return {
      .name = "LinearAttention",
      .inputs = LinearAttention::kInputCount,
      .required_inputs = 3,
      .outputs = 2,
      .required_outputs = 2,
      .attributes = {{.name = "q_num_heads", .required = true, .least = 1, .most = kMostStates},
                     {.name = "kv_num_heads", .required = true, .least = 1, .most = kMostStates},
                     FloatAttribute("scale")},
      .create = MakeOp<LinearAttention>,
      .infer = InferLinearAttention};
}

OpDescription DescribeLinearAttentionGate() {
  return {.name = "LinearAttentionGate",
          .inputs = LinearAttentionGate::kInputCount,
          .required_inputs = 3,
          .outputs = 2,
          .typed_outputs = 2,
          .create = MakeOp<LinearAttentionGate>,
          .infer = InferLikeA};
}

}  // namespace ort_aie
