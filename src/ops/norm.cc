#include "ops/norm.h"

#include <cmath>

#include "base/error.h"
#include "ops/format.h"

namespace ort_aie {

RMSNorm::RMSNorm(const RMSNormAttributes& attributes)
    : k_(attributes.k), epsilon_(attributes.epsilon) {
  CheckFormat(attributes.format);
  Require(k_ > 0, "attribute K must be positive, got ", k_);
  Require(std::isfinite(epsilon_) && epsilon_ >= 0,
          "attribute epsilon must be a finite number of 0 or more, got ", epsilon_);
}

Shape RMSNorm::OutputShape(const Tensor& a) const {
  Require(IsFloat(a.type), "input A must be float, float16 or bfloat16, got ", NameOf(a.type));
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

}  // namespace ort_aie
