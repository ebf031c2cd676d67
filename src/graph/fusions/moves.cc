// Nodes that only move elements become steps, once the fusions before have taken those that belong
// to their patterns: Reshape to constant sizes, Split into constant parts, and Transpose of two
// neighbouring dimensions.
#include <algorithm>

#include "graph/fusions.h"
#include "graph/fusions/match.h"
#include "graph/shapes.h"
#include "ops/format.h"
#include "ops/sizes.h"

namespace ort_aie::graph {
namespace {

std::optional<Recipe::Step> ReshapeStep(const Steps& steps, const Node& node) {
  const auto sizes = Integers(steps.value(node.input(1)));
  if (node.Int("allowzero", 0) != 0 || !sizes || sizes->empty() ||
      sizes->size() > Shape::kInPlace || std::ranges::min(*sizes) < -1 ||
      std::ranges::count(*sizes, -1) > 1) {
    return std::nullopt;
  }
  return Recipe::Step{.op = "Reshape", .name = {}, .strings = {{"sizes", TextOf(*sizes)}}};
}

std::optional<Recipe::Step> SplitStep(const Steps& steps, const Node& node) {
  const auto& whole = steps.value(node.input(0)).shape;
  if (!whole || node.outputs.size() > kMostOutputs) return std::nullopt;
  const auto rank = static_cast<int64_t>(whole->size());
  int64_t axis = node.Int("axis", 0);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank || axis >= static_cast<int64_t>(Shape::kInPlace))
    return std::nullopt;
  std::vector<int64_t> sizes;
  for (const int part : node.outputs) {
    sizes.push_back(steps.graph().FixedDim(part, static_cast<size_t>(axis)));
    if (part == kAbsent || sizes.back() < 1) return std::nullopt;
  }
  return Recipe::Step{
      .op = "Split", .name = {}, .ints = {{"axis", axis}}, .strings = {{"sizes", TextOf(sizes)}}};
}

std::optional<Recipe::Step> TransposeStep(const Steps& steps, const Node& node) {
  const auto& whole = steps.value(node.input(0)).shape;
  const auto axis = whole ? SwappedAxis(node, whole->size()) : std::nullopt;
  if (!axis) return std::nullopt;
  Recipe::Step step{.op = "Transpose", .name = {}};
  if (*axis != 1) step.ints["axis"] = static_cast<int64_t>(*axis);
  return step;
}

bool Move(Steps& steps, const Item* item) {
  const Node* node = steps.node(item);
  if (node == nullptr || !node->domain.empty() || node->outputs.empty()) return false;
  const Value& moved = steps.value(node->input(0));
  if (moved.constant || !IsFloat(TypeOfNumber(moved.type))) return false;
  const auto found = node->op_type == "Reshape"     ? ReshapeStep(steps, *node)
                     : node->op_type == "Split"     ? SplitStep(steps, *node)
                     : node->op_type == "Transpose" ? TransposeStep(steps, *node)
                                                    : std::nullopt;
  if (!found) return false;
  Recipe::Step step = *found;
  step.name = item->step.name;
  step.ints["format"] = kFormat;
  step.reads = {node->input(0)};
  step.writes = node->outputs;
  steps.Fuse(item, std::move(step), {});
  return true;
}

}  // namespace

void TakeMoves(Steps& steps) {
  FuseEach(steps, [&](const Item* item) { return Move(steps, item); });
}

}  // namespace ort_aie::graph
