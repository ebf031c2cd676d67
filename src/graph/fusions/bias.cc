// A bias after a projection -> the projection's input.
//
// Before: Add(P(A, W), bias), P being Q4NXMatMul or GEMM, bias a constant (N)
// After:  P(A, W, bias)
#include <algorithm>

#include "graph/fusions.h"
#include "graph/fusions/match.h"

namespace ort_aie::graph {
namespace {

bool IsBiasOf(const Steps& steps, const Item& projection, int bias) {
  const Value& value = steps.value(bias);
  return value.constant.present &&
         value.constant.shape == Shape{Attributes(projection).Int("N", 0)} && value.type != 0 &&
         value.type == steps.value(Steps::Written(projection, 0)).type;
}

bool FuseInto(Steps& steps, const Item* add, int product, int bias) {
  const Item* projection = MadeBy(steps, product);
  if (!IsMatMul(projection) || Steps::Read(*projection, kBias) != kAbsent ||
      steps.OnlyReader(product) != add || !IsBiasOf(steps, *projection, bias)) {
    return false;
  }
  Recipe::Step step = projection->step;
  step.reads.resize(std::max<size_t>(step.reads.size(), kBias + 1), kAbsent);
  step.reads[kBias] = bias;
  step.writes[0] = Steps::Written(*add, 0);
  steps.Fuse(projection, std::move(step), {add});
  return true;
}

}  // namespace

void FuseBias(Steps& steps) {
  FuseEach(steps, [&](const Item* add) {
    const auto terms = Operands(steps, add, "Add");
    return terms && (FuseInto(steps, add, terms->first, terms->second) ||
                     FuseInto(steps, add, terms->second, terms->first));
  });
}

}  // namespace ort_aie::graph
