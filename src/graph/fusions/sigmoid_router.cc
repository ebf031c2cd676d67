// A router that chooses by sigmoids and a bias -> attributes of Q4NXMoE. The model builder spells
// it out, because QMoE has the softmax alone.
//
// Before: Mul(Q4NXMoE(X, p, ...), total / (total + epsilon) * factor), where p is the logarithm of
//         the chosen scores, and low elsewhere: the lines below
// After:  Q4NXMoE(X, router, ..., bias) with scores, epsilon and factor
#include <algorithm>
#include <cmath>

#include "graph/fusions.h"
#include "graph/fusions/match.h"

namespace ort_aie::graph {
namespace {

constexpr bool kOptional = true;

// In float16 models, there are Casts to and from float.
const Line kLines[] = {
    {"y", "Mul", {"experts", "scale"}},
    {"experts", "Q4NXMoE", {"x", "given"}},
    {"given", "Cast", {"p"}, kOptional},
    {"p", "ScatterElements", {"low", "at", "log"}},
    {"low", "ConstantOfShape", {"shape"}},
    {"shape", "Shape", {"scores"}},
    {"log", "Log", {"clipped"}},
    {"clipped", "Clip", {"chosen", "floor", "no ceiling"}},
    {"chosen", "GatherElements", {"scores", "at"}},
    {"at", "TopK", {"corrected", "top_k"}, !kOptional, 1},
    {"corrected", "Add", {"scores", "bias"}, kOptional},
    {"scores", "Reciprocal", {"denominator"}},
    {"denominator", "Add", {"power", "one"}},
    {"power", "Exp", {"negated"}},
    {"negated", "Neg", {"logits"}},
    {"logits", "Cast", {"router"}, kOptional},
    {"scale", "Cast", {"column"}, kOptional},
    {"column", "Reshape", {"scaled", "sizes"}},
    {"sizes", "Concat", {"sizes of rows"}, kOptional},
    {"sizes of rows", "Slice", {"sizes of x"}, kOptional},
    {"sizes of x", "Shape", {"another x"}, kOptional},
    {"scaled", "Mul", {"quotient", "factor"}, kOptional},
    {"quotient", "Div", {"total", "more"}},
    {"more", "Add", {"total", "epsilon"}},
    {"total", "ReduceSum", {"chosen", "axes"}},
};

bool Fuse(Steps& steps, const Item* last) {
  if (!Operands(steps, last, "Mul")) return false;
  const auto match = FindBehind(steps, last, kLines);
  if (!match) return false;
  const auto value = [&](const char* name) -> const Value& {
    return steps.value(match->value(name));
  };
  const auto scalar = [&](const char* name) {
    const Tensor& constant = value(name).constant;
    const bool known = constant.type == DataType::kFloat32 && constant.data != nullptr &&
                       constant.bytes == sizeof(float);
    return known ? *constant.as<float>() : std::nanf("");
  };
  const auto is_last_of_two = [](int64_t axis) { return axis == -1 || axis == 1; };
  const auto node = [&](const char* name) -> const Node& {
    return *steps.node(steps.Producer(match->value(name)));
  };
  const auto along_experts = [&](const char* name, int64_t fallback) {
    return is_last_of_two(node(name).Int("axis", fallback));
  };
  const Item& experts = *MadeBy(steps, match->value("experts"));
  const auto axes = Integers(value("axes"));
  const auto &scores = value("scores").shape, &column = value("column").shape;
  const bool right_axes =
      scores && scores->size() == 2 && column && !column->empty() && column->back().value == 1 &&
      along_experts("p", 0) && along_experts("chosen", 0) && along_experts("at", -1) && axes &&
      axes->size() == 1 && is_last_of_two(axes->front()) && node("total").Int("keepdims", 1) == 1;
  if (!right_axes || node("at").Int("largest", 1) != 1) return false;

  const Tensor& bias = value("bias").constant;
  const StepInfo attributes = Attributes(experts);
  const bool right_choice =
      Integers(value("top_k")) == std::vector{attributes.Int("top_k", 0)} &&
      (match->value("bias") == kAbsent ||
       (bias.type == DataType::kFloat32 && bias.shape == Shape{attributes.Int("experts", 0)}));
  // QMoE chooses the same, and what the floor changes is too little for a sum to show.
  const float floor = scalar("floor"), low = node("low").Float("value", 0.0f);
  const bool right_floor =
      floor > 0 && floor < 1e-20f && low < std::log(floor) && match->value("no ceiling") == kAbsent;
  const float epsilon = scalar("epsilon");
  const float factor = match->value("factor") == kAbsent ? 1.0f : scalar("factor");
  if (!right_choice || !right_floor || scalar("one") != 1.0f || std::isnan(epsilon) ||
      std::isnan(factor) || value("router").type != value("x").type ||
      Steps::Read(experts, kRouterWeights) != kAbsent ||
      Steps::Read(experts, kChoiceBias) != kAbsent) {
    return false;
  }
  Recipe::Step step = experts.step;
  step.name = last->step.name;
  step.reads[kRouter] = match->value("router");
  if (match->value("bias") != kAbsent) {
    step.reads.resize(kChoiceBias + 1, kAbsent);
    step.reads[kChoiceBias] = match->value("bias");
  }
  step.writes = last->step.writes;
  step.strings["scores"] = "sigmoid";
  step.floats["epsilon"] = epsilon;
  if (factor != 1.0f) step.floats["factor"] = factor;
  steps.Fuse(last, std::move(step), match->items);
  return true;
}

}  // namespace

void FuseSigmoidRouter(Steps& steps) {
  FuseEach(steps, [&](const Item* item) { return Fuse(steps, item); });
}

}  // namespace ort_aie::graph
