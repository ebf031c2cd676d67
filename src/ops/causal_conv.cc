// aie.CausalConv(A, weight, bias?, past?) -> Y, present: a convolution of each channel by itself
// over the token and those before it, as com.microsoft.CausalConvWithState and ONNX's.
//   A        (batch, channels, tokens) float, float16 or bfloat16
//   weight   (channels, 1, taps)
//   bias     (channels)
//   past     (batch, channels, taps - 1): what came before A; zeros if it is not given
//   Y        as A
//   present  as past: what comes before the next call's A
// All of A's type. Attributes: taps, activation ("none" or "silu"), format.
#include "base/error.h"
#include "ops/op.h"

namespace ort_aie {
namespace {

// More than any model has.
constexpr int64_t kMostTaps = 1 << 12;

class CausalConv final : public Op {
 public:
  enum Input { kA, kWeight, kBias, kPast, kInputCount };

  explicit CausalConv(const NodeInfo& info)
      : taps_(info.Int("taps", 0)), silu_(info.String("activation") == "silu") {
    Require(taps_ > 0 && taps_ <= kMostTaps, "attribute taps must be 1 to ", kMostTaps, ", got ",
            taps_);
    Require(silu_ || info.String("activation") == "none",
            "attribute activation must be none or silu, got '", info.String("activation"), "'");
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor& a = inputs[kA];
    RequireFloat("A", a);
    Require(a.shape.size() == 3, "input A must be (batch, channels, tokens), got ", a.shape);
    const int64_t channels = a.shape[1];
    const Shape state = {a.shape[0], channels, taps_ - 1};
    RequireTensor("weight", inputs[kWeight], a.type, {channels, 1, taps_});
    if (inputs[kBias]) RequireTensor("bias", inputs[kBias], a.type, {channels});
    if (inputs[kPast]) RequireTensor("past", inputs[kPast], a.type, state);
    outputs[0] = {a.type, a.shape};
    outputs[1] = {a.type, state};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor& a = inputs[kA];
    if (a.shape[0] == 0 || a.shape[1] == 0) return;
    plan.steps.emplace_back(ConvStep{.batch = a.shape[0],
                                     .channels = a.shape[1],
                                     .tokens = a.shape[2],
                                     .taps = taps_,
                                     .x = a.data,
                                     .weight = inputs[kWeight].data,
                                     .bias = inputs[kBias].data,
                                     .past = inputs[kPast].data,
                                     .y = buffers[0],
                                     .present = buffers[1],
                                     .silu = silu_,
                                     .type = a.type});
  }

 private:
  const int64_t taps_;
  const bool silu_;
};

void InferCausalConv(const ShapeContext& context) {
  auto value = RequiredActivations(context);
  context.SetOutput(0, value);
  value.dims.resize(3);
  const auto taps = DimOf(context, "taps");
  value.dims[2] = {taps.value > 0 ? taps.value - 1 : -1};
  context.SetOutput(1, value);
}

}  // namespace

OpDescription DescribeCausalConv() {
  return {.name = "CausalConv",
          .inputs = CausalConv::kInputCount,
          .required_inputs = 2,
          .outputs = 2,
          .required_outputs = 2,
          .attributes = {RequiredSize("taps"), TextAttribute("activation")},
          .create = MakeOp<CausalConv>,
          .infer = InferCausalConv};
}

}  // namespace ort_aie
