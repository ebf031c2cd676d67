#include "ops/gated_mlp.h"

#include "base/error.h"

namespace ort_aie {
namespace {

Activation ActivationNamed(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  Fail(ErrorCode::kInvalidGraph, "attribute activation must be silu or gelu_tanh, got '", name,
       "'");
}

}  // namespace

GatedMLP::GatedMLP(const MatMulAttributes& attributes, const std::string& activation,
                   const Tensor& gate, const Tensor& up, const Options& options)
    : gate_("W_gate", attributes, gate, options),
      up_(CheckWeights("W_up", attributes.weights, up)),
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
