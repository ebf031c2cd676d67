#include "ops/gated_mlp.h"

#include <limits>

#include "base/error.h"
#include "q4nx/layout.h"

namespace ort_aie {
namespace {

constexpr int64_t kMostFeatures = std::numeric_limits<int64_t>::max() / 4;

Activation ActivationNamed(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  Fail(ErrorCode::kInvalidGraph, "attribute activation must be silu or gelu_tanh, got '", name,
       "'");
}

// Gate or up, from a tensor that holds both.
Tensor HalfOf(const Tensor& both, const MatMulAttributes& attributes, bool second) {
  WeightAttributes whole = attributes.weights;
  Require(whole.n > 0 && whole.n % q4nx::kBlockRows == 0 && Size(whole.n) * 2 <= kMostFeatures,
          "attribute N must be a multiple of ", q4nx::kBlockRows,
          " if W_gate holds gate and up, got ", whole.n);
  whole.n *= 2;
  CheckWeights("W_gate", whole, both);
  Tensor half = both;
  half.shape[0] /= 2;
  half.bytes /= 2;
  if (second) half.data = both.as<uint8_t>() + half.bytes;
  return half;
}

Tensor GateOf(const Tensor& gate, const Tensor& up, const MatMulAttributes& attributes) {
  return up ? gate : HalfOf(gate, attributes, false);
}

Tensor UpOf(const Tensor& gate, const Tensor& up, const MatMulAttributes& attributes) {
  return up ? up : HalfOf(gate, attributes, true);
}

}  // namespace

GatedMLP::GatedMLP(const MatMulAttributes& attributes, const std::string& activation,
                   const Tensor& gate, const Tensor& up, const Options& options)
    : gate_("W_gate", attributes, GateOf(gate, up, attributes), options),
      up_(CheckWeights("W_up", attributes.weights, UpOf(gate, up, attributes))),
      activation_(ActivationNamed(activation)) {}

void GatedMLP::Append(const Inputs& inputs, void* y, void* sum, Plan& plan) const {
  const size_t first = plan.steps.size();
  gate_.Append({inputs.a, {}, inputs.norm_weight, inputs.skip}, y, sum, plan);
  for (size_t i = first; i < plan.steps.size(); ++i) {
    auto& projection = std::get<MatMulStep>(plan.steps[i]);
    projection.up_weights = up_.blocks;
    projection.activation = activation_;
  }
}

}  // namespace ort_aie
