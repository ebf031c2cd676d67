// aie.GatedDeltaNet(query, key, value, past, decay?, beta?, rate?, bias?) -> Y, present: linear
// attention as com.microsoft.GatedDeltaNet, of sequences of one length. What it computes:
// RecurrenceStep in ops/plan.h.
//   query, key     (tokens of all sequences, or batch and tokens; key heads, key_dim) in floats of
//                  32 or 16 bits
//   value          (as query; heads, value_dim), heads a multiple of the key heads
//   past, present  (batch, heads, value_dim, key_dim) float
//   decay          (as query; heads), or times key_dim; beta (as query; heads). Both float, or as
//                  query
//   rate           (heads) float: the logarithm of what a gate multiplies; bias (heads) float, or
//                  times key_dim: both for `gate`
//   Y              as value
// Attributes: gate, of decay (softplus, or sigmoid with lower_bound); sigmoid = 1: of beta;
// unit = 1: queries and keys get length one; scale (0: 1 / sqrt(key_dim)); format.
#include <cmath>

#include "base/error.h"
#include "ops/op.h"

namespace ort_aie {
namespace {

class GatedDeltaNet final : public Op {
 public:
  enum Input { kQuery, kKey, kValue, kPast, kDecay, kBeta, kRate, kBias, kInputCount };

  explicit GatedDeltaNet(const NodeInfo& info) {
    const std::string gate = info.String("gate");
    Require(gate.empty() || gate == "softplus" || gate == "sigmoid",
            "attribute gate must be softplus or sigmoid, got '", gate, "'");
    step_.gate = gate.empty()         ? RecurrenceStep::Gate::kNone
                 : gate == "softplus" ? RecurrenceStep::Gate::kSoftplus
                                      : RecurrenceStep::Gate::kSigmoid;
    step_.lower_bound = info.Float("lower_bound", 0);
    step_.sigmoid_beta = info.Int("sigmoid", 0) == 1;
    step_.unit = info.Int("unit", 0) == 1;
    step_.scale = info.Float("scale", 0);
    step_.values_first = true;
    step_.state_type = DataType::kFloat32;
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor &query = inputs[kQuery], &value = inputs[kValue], &past = inputs[kPast];
    RequireFloat("query", query);
    const RecurrenceStep sizes = SizesIn(inputs);
    const auto each = [&](std::initializer_list<int64_t> of_token) {
      Shape shape = query.shape;
      shape.resize(shape.size() - 2);
      for (const int64_t dim : of_token) shape.push_back(dim);
      return shape;
    };
    RequireTensor("key", inputs[kKey], query.type, query.shape);
    RequireTensor("value", value, query.type, each({sizes.heads, sizes.value_dim}));
    RequireTensor("past", past, DataType::kFloat32,
                  {sizes.batch, sizes.heads, sizes.value_dim, sizes.key_dim});
    if (inputs[kDecay]) {
      RequireFloat("decay", inputs[kDecay]);
      RequireTensor(
          "decay", inputs[kDecay], sizes.gate_type,
          sizes.decays == sizes.heads ? each({sizes.heads}) : each({sizes.heads, sizes.key_dim}));
    }
    if (inputs[kBeta]) {
      RequireFloat("beta", inputs[kBeta]);
      RequireTensor("beta", inputs[kBeta], sizes.gate_type, each({sizes.heads}));
    }
    if (step_.gate != RecurrenceStep::Gate::kNone) {
      const Tensor& bias = inputs[kBias];
      Require(inputs[kDecay].present, "input decay is missing, which attribute gate needs");
      RequireTensor("rate", inputs[kRate], DataType::kFloat32, {sizes.heads});
      const bool by_channel = sizes.biases != sizes.heads;
      const bool flat = by_channel && bias.shape.size() == 1;
      RequireTensor("bias", bias, DataType::kFloat32,
                    by_channel && !flat ? Shape{sizes.heads, sizes.key_dim} : Shape{sizes.biases});
    }
    outputs[0] = {query.type, value.shape};
    outputs[1] = {DataType::kFloat32, past.shape};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
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
    if (step.gate != RecurrenceStep::Gate::kNone) {
      step.rate = inputs[kRate].as<float>();
      step.bias = inputs[kBias].as<float>();
    }
    if (step.scale == 0) step.scale = 1 / std::sqrt(static_cast<float>(step.key_dim));
    step.type = inputs[kQuery].type;
    plan.steps.emplace_back(step);
  }

 private:
  // As far as each input says its own; Describe checks that they agree.
  RecurrenceStep SizesIn(std::span<const Tensor> inputs) const {
    const Shape &query = inputs[kQuery].shape, &value = inputs[kValue].shape;
    const Shape& past = inputs[kPast].shape;
    Require(query.size() == 3 || query.size() == 4,
            "input query must have three or four dimensions, got ", query);
    Require(value.size() == query.size(), "input value must have as many dimensions as query, ",
            query.size(), ", got ", value);
    Require(past.size() == 4, "input past must have four dimensions, got ", past);
    RecurrenceStep step = step_;
    step.batch = past[0];
    step.key_dim = query.back();
    step.value_dim = value.back();
    step.query_heads = step.key_heads = query[query.size() - 2];
    step.heads = value[value.size() - 2];
    Require(step.key_heads > 0 && step.heads % step.key_heads == 0, "the heads of input value, ",
            step.heads, ", must be a multiple of those of query, got ", step.key_heads);
    const int64_t tokens = query.size() == 4 ? query[1] : query[0];
    Require(query.size() == 3 || query[0] == step.batch, "input query has ", query[0],
            " sequences, but past has ", step.batch);
    Require(query.size() == 4 || step.batch == 0 || tokens % step.batch == 0, "input query has ",
            tokens, " tokens, which are not as many for each of ", step.batch, " sequences");
    step.tokens = query.size() == 4 || step.batch == 0 ? tokens : tokens / step.batch;
    const int64_t channels = (Size(step.heads) * step.key_dim).As("a token");
    step.decays = inputs[kDecay].shape.size() == query.size() ? channels : step.heads;
    step.betas = step.heads;
    step.gate_type = inputs[inputs[kDecay] ? kDecay : kBeta].type;
    const Shape& bias = inputs[kBias].shape;
    step.biases = step.decays != step.heads && bias != Shape{step.heads} ? channels : step.heads;
    return step;
  }

  RecurrenceStep step_ = {};  // without what a call gives
};

void InferGatedDeltaNet(const ShapeContext& context) {
  auto value = RequiredInput(context, GatedDeltaNet::kValue, "value");
  context.SetOutput(0, value);
  context.SetOutput(1, RequiredInput(context, GatedDeltaNet::kPast, "past"));
}

}  // namespace

OpDescription DescribeGatedDeltaNet() {
  return {.name = "GatedDeltaNet",
          .inputs = GatedDeltaNet::kInputCount,
          .required_inputs = 4,
          .outputs = 2,
          .required_outputs = 2,
          .attributes = {TextAttribute("gate"),
                         FloatAttribute("lower_bound"),
                         {.name = "sigmoid", .least = 0, .most = 1},
                         {.name = "unit", .least = 0, .most = 1},
                         FloatAttribute("scale")},
          .create = MakeOp<GatedDeltaNet>,
          .infer = InferGatedDeltaNet};
}

}  // namespace ort_aie
