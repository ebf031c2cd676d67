#include "ops/norm.h"

#include <cmath>

#include "base/error.h"
#include "ops/format.h"

namespace ort_aie {

namespace {

void CheckAttributes(int64_t format, int64_t k, float epsilon) {
  CheckFormat(format);
  Require(k > 0, "attribute K must be positive, got ", k);
  Require(std::isfinite(epsilon) && epsilon >= 0,
          "attribute epsilon must be a finite number of 0 or more, got ", epsilon);
}

void RequireFloat(const Tensor& a) {
  Require(IsFloat(a.type), "input A must be float, float16 or bfloat16, got ", NameOf(a.type));
}

Function GateFunction(const std::string& name) {
  if (name == "silu") return Function::kSilu;
  if (name == "sigmoid") return Function::kSigmoid;
  Fail(ErrorCode::kInvalidGraph, "attribute activation must be silu or sigmoid, got '", name, "'");
}

}  // namespace

RMSNorm::RMSNorm(const RMSNormAttributes& attributes)
    : k_(attributes.k), epsilon_(attributes.epsilon) {
  CheckAttributes(attributes.format, k_, epsilon_);
}

Shape RMSNorm::OutputShape(const Tensor& a) const {
  RequireFloat(a);
  Require(!a.shape.empty() && a.shape.back() == k_, "input A must be (..., ", k_, "), got ",
          a.shape);
  return a.shape;
}

void RMSNorm::Append(const Inputs& inputs, void* y, void* sum, Plan& plan) const {
  const auto& [a, weight, skip] = inputs;
  const int64_t rows = ElementCount(a.shape).As("input A") / k_;
  RequireTensor("weight", weight, a.type, {k_});
  if (skip) RequireTensor("skip", skip, a.type, a.shape);
  if (rows == 0) return;
  plan.steps.emplace_back(NormStep{.rows = rows,
                                   .k = k_,
                                   .a = a.data,
                                   .skip = skip ? skip.data : nullptr,
                                   .weight = weight.data,
                                   .y = y,
                                   .sum = skip ? sum : nullptr,
                                   .type = a.type,
                                   .epsilon = epsilon_});
}

GatedRMSNorm::GatedRMSNorm(const GatedRMSNormAttributes& attributes)
    : k_(attributes.k),
      epsilon_(attributes.epsilon),
      function_(GateFunction(attributes.activation)) {
  CheckAttributes(attributes.format, k_, epsilon_);
}

Shape GatedRMSNorm::OutputShape(const Tensor& a) const {
  RequireFloat(a);
  Require(!a.shape.empty() && a.shape.back() % k_ == 0, "input A must be (..., a multiple of ", k_,
          "), got ", a.shape);
  return a.shape;
}

void GatedRMSNorm::Append(const Inputs& inputs, void* y, Plan& plan) const {
  const auto& [a, weight, gate] = inputs;
  const int64_t rows = ElementCount(a.shape).As("input A") / k_;
  RequireTensor("weight", weight, a.type, {k_});
  RequireTensor("gate", gate, a.type, a.shape);
  if (rows == 0) return;
  plan.steps.emplace_back(NormStep{.rows = rows,
                                   .k = k_,
                                   .a = a.data,
                                   .skip = nullptr,
                                   .weight = weight.data,
                                   .y = y,
                                   .sum = nullptr,
                                   .type = a.type,
                                   .epsilon = epsilon_,
                                   .gate = gate.data,
                                   .gate_function = function_});
}

}  // namespace ort_aie
