// aie.RMSNorm(A, weight, skip?) -> Y, sum?: the RMS norm of A, or with skip of sum = A + skip, by
// itself. A norm before a projection is part of the projection (matmul.cc), with the same results
// in float32.
//   A       (..., K) float, float16 or bfloat16
//   weight  (K) of A's type
//   skip    as A
//   Y       as A
//   sum     as A, if skip is given and the output is wanted. The norm uses the unrounded sum.
// Attributes: K, epsilon, format.
//
// aie.GatedRMSNorm(A, weight, gate) -> Y: the RMS norm of each K channels of A, such as a head,
// times activation(gate). As com.microsoft.GatedRMSNorm.
//   A       (..., channels), channels a multiple of K
//   weight  (K) of A's type
//   gate    as A
//   Y       as A
// Attributes: K, epsilon, activation ("silu" or "sigmoid"), format.
#include <cmath>
#include <optional>

#include "base/error.h"
#include "ops/op.h"

namespace ort_aie {
namespace {

Function GateFunction(const std::string& name) {
  if (name == "silu") return Function::kSilu;
  if (name == "sigmoid") return Function::kSigmoid;
  Fail(ErrorCode::kInvalidGraph, "attribute activation must be silu or sigmoid, got '", name, "'");
}

template <bool kGated>
class Norm final : public Op {
 public:
  enum Input { kA, kWeight, kSkipOrGate, kInputCount };

  explicit Norm(const NodeInfo& info) : k_(info.Int("K", 0)), epsilon_(info.Float("epsilon", 0)) {
    Require(k_ > 0, "attribute K must be positive, got ", k_);
    Require(std::isfinite(epsilon_) && epsilon_ >= 0,
            "attribute epsilon must be a finite number of 0 or more, got ", epsilon_);
    if (kGated) function_ = GateFunction(info.String("activation"));
    const Tensor weight = info.ConstantInput(kWeight);
    if (weight) RequireTensor("weight", weight, weight.type, {k_});
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor& a = inputs[kA];
    RequireFloat("A", a);
    const auto fits = [&](int64_t channels) {
      return kGated ? channels % k_ == 0 : channels == k_;
    };
    Require(!a.shape.empty() && fits(a.shape.back()), "input A must be (..., ",
            kGated ? "a multiple of " : "", k_, "), got ", a.shape);
    outputs[0] = {a.type, a.shape};
    if (!kGated && inputs[kSkipOrGate]) outputs[1] = outputs[0];
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor &a = inputs[kA], &weight = inputs[kWeight], &other = inputs[kSkipOrGate];
    const int64_t rows = ElementCount(a.shape).As("input A") / k_;
    RequireTensor("weight", weight, a.type, {k_});
    if (kGated || other) RequireTensor(kGated ? "gate" : "skip", other, a.type, a.shape);
    if (rows == 0) return;
    const void* skip = !kGated && other ? other.data : nullptr;
    plan.steps.emplace_back(NormStep{.rows = rows,
                                     .k = k_,
                                     .a = a.data,
                                     .skip = skip,
                                     .weight = weight.data,
                                     .y = buffers[0],
                                     .sum = !kGated && other ? buffers[1] : nullptr,
                                     .type = a.type,
                                     .epsilon = epsilon_,
                                     .gate = kGated ? other.data : nullptr,
                                     .gate_function = function_});
  }

 private:
  const int64_t k_;
  const float epsilon_;
  Function function_ = Function::kSilu;
};

}  // namespace

OpDescription DescribeRMSNorm() {
  return {.name = "RMSNorm",
          .inputs = Norm<false>::kInputCount,
          .required_inputs = 2,
          .outputs = 2,
          .attributes = {RequiredSize("K"), FloatAttribute("epsilon")},
          .create = MakeOp<Norm<false>>,
          .infer = InferLikeA};
}

OpDescription DescribeGatedRMSNorm() {
  return {.name = "GatedRMSNorm",
          .inputs = Norm<true>::kInputCount,
          .required_inputs = Norm<true>::kInputCount,
          .attributes = {RequiredSize("K"), FloatAttribute("epsilon"), TextAttribute("activation")},
          .create = MakeOp<Norm<true>>,
          .infer = InferLikeA};
}

}  // namespace ort_aie
