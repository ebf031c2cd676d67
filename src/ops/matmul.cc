// Projections, Y = x . W^T + bias with constant W. x is A; with norm_weight, x is the RMS norm of
// A; with skip as well, x is the RMS norm of sum = A + skip.
//
// aie.Q4NXMatMul(A, W, bias?, norm_weight?, skip?) -> Y, sum?: W in Q4NX, Q2NX, Q8NX, or a form of
// GGUF files.
// aie.GEMM, the same for weights that were not quantised, such as those of a vision tower: A is
// rounded to bfloat16 for the products, sums are float32.
//   A           (..., K) float, float16 or bfloat16
//   W           blocks of the shape BlocksShape (ops/weights.h)
//   bias        (N) of A's type
//   norm_weight (K) of A's type
//   skip        as A; needs norm_weight
//   Y           (..., N) of A's type
//   sum         as A, if skip is given and the output is wanted
// Attributes: K, N, norm_epsilon, format; logits (1: of A (1, rows, K), only the last rows count
// that ops/logits.h says; default 0); for Q4NXMatMul also bits (4, the default, 2 or 8), with
// format 2 group (32, 64, 128 or 256) and minima (whether they are stored), or with format 3 type
// (a name of q4nx/file_forms.h, which then says all of these), accuracy_level (as MatMulNBits
// defines it) and symmetric (1: every min is -2^(bits-1) * scale, or with 8 bits every zero point
// 128, so that they need not be read; default 0; implied without minima).
//
// aie.Q4NXGatedMLP and aie.GatedGEMM(A, W_gate, W_up?, norm_weight?, skip?) -> Y, sum?:
// Y = activation(x . W_gate^T) * (x . W_up^T), the first half of a gated MLP; x as above.
//   A, norm_weight, skip, sum  as above
//   W_gate, W_up               as W above: of Q4NXMatMul, or of GEMM. Without W_up, W_gate is W of
//                              2 N out-features, gate before up; N must then be a multiple of 32
//   Y                          (..., N) of A's type
// Attributes: those of Q4NXMatMul or of GEMM, and activation ("silu" or "gelu_tanh"). The result of
// each product stays in float32 until Y is stored.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

#include "base/error.h"
#include "ops/logits.h"
#include "ops/op.h"
#include "ops/weights.h"

namespace ort_aie {
namespace {

constexpr int64_t kMostFeatures = std::numeric_limits<int64_t>::max() / 4;
// With prompt_logits=last, calls of more tokens have logits of so many. onnxruntime-genai reads
// those of the last token that is not padding, and all where it verifies up to 16 drafts.
constexpr int64_t kLastLogits = 32;

Activation GatingFunction(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  Fail(ErrorCode::kInvalidGraph, "attribute activation must be silu or gelu_tanh, got '", name,
       "'");
}

// Halves a tensor that holds gate and up; returns up.
Tensor SplitOff(Tensor& gate, WeightAttributes whole) {
  Require(whole.n > 0 && whole.n % q4nx::kBlockRows == 0 && Size(whole.n) * 2 <= kMostFeatures,
          "attribute N must be a multiple of ", q4nx::kBlockRows,
          " if W_gate holds gate and up, got ", whole.n);
  whole.n *= 2;
  CheckWeights("W_gate", whole, gate);
  gate.shape[0] /= 2;
  gate.bytes /= 2;
  Tensor up = gate;
  up.data = gate.as<uint8_t>() + gate.bytes;
  return up;
}

class Projection final : public Op {
 public:
  // A gated MLP has W_gate and W_up where a projection has W and bias.
  enum Input { kA, kWeights, kBias, kUp = kBias, kNormWeight, kSkip, kInputCount };

  Projection(const NodeInfo& info, const Options& options, bool bf16, bool gated)
      : prompt_chunk_(options.prompt_chunk),
        last_logits_(options.last_logits),
        norm_epsilon_(info.Float("norm_epsilon", 0)),
        logits_(info.Int("logits", 0) == 1) {
    WeightAttributes attributes = ReadWeightAttributes(info);
    attributes.bf16 = bf16;
    Tensor w = info.ConstantInput(kWeights), up;
    if (gated) up = info.ConstantInput(kUp);
    if (gated && !up) up = SplitOff(w, attributes);
    weights_ = CheckWeights(gated ? "W_gate" : "W", attributes, w);
    if (gated) {
      up_ = CheckWeights("W_up", attributes, up).blocks;
      activation_ = GatingFunction(info.String("activation"));
    }
    // Weights that were not quantised never use int8 products.
    numerics_ = weights_.form.kind == WeightKind::kBf16
                    ? Numerics::kBf16
                    : options.NumericsFor(info.Int("accuracy_level", 0));
    symmetric_ = info.Int("symmetric", 0) == 1 || !weights_.form.minima;
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor& a = inputs[kA];
    RequireFloat("A", a);
    Require(!a.shape.empty() && a.shape.back() == weights_.k, "input A must be (..., ", weights_.k,
            "), got ", a.shape);
    Shape y = a.shape;
    if (Chooses(a)) y[1] = RowsOf(a);
    y.back() = weights_.n;
    outputs[0] = {a.type, std::move(y)};
    if (inputs[kSkip]) outputs[1] = {a.type, a.shape};
  }

  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor &a = inputs[kA], &norm_weight = inputs[kNormWeight], &skip = inputs[kSkip];
    const bool biased = up_ == nullptr && inputs[kBias];
    const int64_t rows = RowsOf(a), all = ElementCount(a.shape).As("input A") / weights_.k;
    if (biased) RequireTensor("bias", inputs[kBias], a.type, {weights_.n});
    if (norm_weight) RequireTensor("norm_weight", norm_weight, a.type, {weights_.k});
    if (skip) {
      Require(static_cast<bool>(norm_weight), "input skip needs input norm_weight");
      RequireTensor("skip", skip, a.type, a.shape);
    }
    if (rows == 0) return;
    const int64_t unread = last_logits_ && LogitsToKeep() == 0 && Chooses(a)
                               ? std::max<int64_t>(0, rows - kLastLogits)
                               : 0;
    for (int64_t row = 0; row < unread; ++row) {
      // NaN shows in whatever is computed from the row. All bits set are NaN in each type.
      std::memset(Advance(buffers[0], a.type, row * weights_.n), 0xff, SizeOf(a.type));
    }
    auto& step = std::get<MatMulStep>(plan.steps.emplace_back(MatMulStep{}));
    step.weights = weights_.blocks;
    step.form = weights_.form;
    step.rows = rows - unread;
    step.k = weights_.k;
    step.n = weights_.n;
    const int64_t before = all - step.rows;  // rows that do not count
    step.a = Advance(a.data, a.type, before * weights_.k);
    step.bias = biased ? inputs[kBias].data : nullptr;
    step.y = Advance(buffers[0], a.type, unread * weights_.n);
    step.type = a.type;
    step.numerics = numerics_;
    step.symmetric = symmetric_;
    step.norm_weight = norm_weight ? norm_weight.data : nullptr;
    step.skip = skip ? Advance(skip.data, a.type, before * weights_.k) : nullptr;
    step.sum = skip && before == 0 ? buffers[1] : nullptr;
    step.norm_epsilon = norm_epsilon_;
    step.up_weights = up_;
    step.activation = activation_;
    step.kept = kept_;
    step.prompt_chunk = prompt_chunk_;
  }

 private:
  // Whether only the last rows may count.
  bool Chooses(const Tensor& a) const { return logits_ && a.shape.size() == 3 && a.shape[0] == 1; }
  // Rows of `a` that count: the last ones.
  int64_t RowsOf(const Tensor& a) const {
    const int64_t rows = ElementCount(a.shape).As("input A") / weights_.k;
    return Chooses(a) && LogitsToKeep() > 0 ? std::min(rows, LogitsToKeep()) : rows;
  }

  Weights weights_;
  const uint8_t* up_ = nullptr;
  Activation activation_ = Activation::kNone;
  Numerics numerics_ = Numerics::kBf16;
  int64_t prompt_chunk_;
  bool last_logits_;
  bool symmetric_ = false;
  float norm_epsilon_;
  bool logits_;
  std::shared_ptr<KeptState> kept_ = std::make_shared<KeptState>();
};

// Only Y. The model states the type and shape of sum: if a node with skip lacked the output, ONNX
// Runtime would write behind its list of outputs, which it does not check.
void InferProjection(const ShapeContext& context) {
  auto value = RequiredActivations(context);
  value.dims.back() = DimOf(context, "N");
  context.SetOutput(0, value);
}

// With weights in bfloat16, or quantised ones, whose form the op's attributes state.
template <bool kBf16, bool kGated>
OpDescription DescribeProjection(const char* name) {
  OpDescription description = {
      .name = name,
      .inputs = Projection::kInputCount,
      .required_inputs = 2,
      .outputs = 2,
      .attributes = {RequiredSize("K"), RequiredSize("N"), FloatAttribute("norm_epsilon")},
      .create = [](const NodeInfo& info, const Options& options) -> std::unique_ptr<Op> {
        return std::make_unique<Projection>(info, options, kBf16, kGated);
      },
      .infer = InferProjection,
      .anchor = true};
  if (!kBf16) {
    description = WithForm(std::move(description));
    description.attributes.push_back({.name = "accuracy_level"});
    description.attributes.push_back({.name = "symmetric", .least = 0, .most = 1});
  }
  description.attributes.push_back(kGated ? TextAttribute("activation")
                                          : AttributeRule{.name = "logits", .least = 0, .most = 1});
  return description;
}

}  // namespace

OpDescription DescribeQ4NXMatMul() { return DescribeProjection<false, false>("Q4NXMatMul"); }
OpDescription DescribeGemm() { return DescribeProjection<true, false>("GEMM"); }
OpDescription DescribeQ4NXGatedMLP() { return DescribeProjection<false, true>("Q4NXGatedMLP"); }
OpDescription DescribeGatedGemm() { return DescribeProjection<true, true>("GatedGEMM"); }

}  // namespace ort_aie
