// The Reshape between a router and its experts, which only joins batch and sequence, goes.
//
// Before: Q4NXMoE(X (..., K), Reshape(router (..., experts), (rows, experts)), ...)
// After:  Q4NXMoE(X, router, ...)

#include <utility>

#include "graph/fusions.h"
#include "graph/fusions/match.h"

namespace ort_aie::graph {
namespace {

// Whether both shapes are known to have the same dimensions but the last.
bool SameRows(const Value& a, const Value& b) {
  if (!a.shape || !b.shape || a.shape->empty() || b.shape->empty()) return false;
  Value rows_of_a = a, rows_of_b = b;
  rows_of_a.shape->pop_back();
  rows_of_b.shape->pop_back();
  return SameShape(rows_of_a, rows_of_b);
}

bool FuseReshape(Steps& steps, const Item* experts) {
  if (!experts->Is("Q4NXMoE")) return false;
  const Item* reshape = MadeBy(steps, Steps::Read(*experts, kRouter));
  const Node* node = steps.node(reshape);
  if (node == nullptr || !node->Is("", "Reshape")) return false;
  if (steps.OnlyReader(Steps::Written(*reshape, 0)) != experts) return false;
  const int router = Steps::Read(*reshape, 0);
  const Value& logits = steps.value(router);
  // As many rows as X, each as long: the result of the Reshape, which the op requires to be (rows,
  // experts), has the same rows in the same order.
  if (!SameRows(logits, steps.value(Steps::Read(*experts, kX)))) return false;
  if (logits.shape->back().value != Attributes(*experts).Int("experts", 0)) return false;
  Recipe::Step step = experts->step;
  step.reads[kRouter] = router;
  steps.Fuse(experts, std::move(step), {reshape});
  return true;
}

}  // namespace

void FuseRouter(Steps& steps) {
  FuseEach(steps, [&](const Item* item) { return FuseReshape(steps, item); });
}

}  // namespace ort_aie::graph
