#include "ops/cast.h"

#include "base/error.h"
#include "ops/format.h"

namespace ort_aie {

Cast::Cast(const CastAttributes& attributes) : type_(attributes.type) {
  CheckFormat(attributes.format);
  Require(IsFloat(type_), "attribute dtype must be FLOAT (1), FLOAT16 (10) or BFLOAT16 (16)");
}

Shape Cast::OutputShape(const Tensor& a) const {
  Require(IsFloat(a.type), "input A must be float, float16 or bfloat16, got ", NameOf(a.type));
  return a.shape;
}

void Cast::Append(const Tensor& a, void* y, Plan& plan) const {
  const int64_t count = ElementCount(a.shape).As("input A");
  if (count == 0) return;
  plan.steps.emplace_back(
      CastStep{.count = count, .x = a.data, .from = a.type, .y = y, .to = type_});
}

}  // namespace ort_aie
