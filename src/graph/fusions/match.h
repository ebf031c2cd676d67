// Questions that several fusions ask about a graph.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/steps.h"

namespace ort_aie::graph {

// Inputs by position. A gated projection has the weights of up in place of a bias.
enum ProjectionInput { kA, kWeights, kBias, kNormWeight, kSkip };
enum NormInput { kNormA, kNormScale, kNormSkip };
enum ExpertsInput { kX, kRouter, kRouterWeights = 8, kChoiceBias };

inline bool IsMatMul(const Item* item) {
  return item != nullptr && (item->Is("Q4NXMatMul") || item->Is("GEMM"));
}
inline bool IsGatedMLP(const Item* item) {
  return item != nullptr && (item->Is("Q4NXGatedMLP") || item->Is("GatedGEMM"));
}

// Attributes of a step, with fallbacks: those of nodes of the domain aie have not been checked.
inline StepInfo Attributes(const Item& item) { return StepInfo(item.step, {}); }

// The item that writes `value` as its first output.
const Item* MadeBy(const Steps& steps, int value);
// Both inputs of an Add or a Mul, whether it is a step or a node whose shapes are unknown.
std::optional<std::pair<int, int>> Operands(const Steps& steps, const Item* item,
                                            std::string_view op);

// A line of a pattern: `result` = op(inputs), where names stand for values. Operands of Add and Mul
// may be in either order. Of a line that may be missing, the result is its first input.
struct Line {
  std::string_view result, op;
  std::vector<std::string_view> inputs;
  bool optional = false;
  size_t output = 0;  // whose result it is
};
// What a pattern found: a value for each name, and the items of its lines without the first.
struct Match {
  std::map<std::string_view, int> values;
  std::vector<const Item*> items;

  // kAbsent for what was missing.
  int value(std::string_view name) const {
    const auto found = values.find(name);
    return found != values.end() ? found->second : kAbsent;
  }
};
// Finds the pattern whose first line is `last`; a later line makes an input of an earlier one. Only
// the items that are found may read the results of later lines.
std::optional<Match> FindBehind(const Steps& steps, const Item* last, std::span<const Line> lines);

// Calls fuse(item), which says whether it changed the graph, for one item after the other. Repeats
// it for an item until nothing more changes.
template <typename Fuse>
void FuseEach(Steps& steps, const Fuse& fuse) {
  for (size_t i = 0; i < steps.items().size();) {
    const size_t before = steps.items().size();
    if (!fuse(&steps.items()[i])) {
      ++i;
      continue;
    }
    // The fused items may have stood before this one.
    const size_t gone = before - steps.items().size();
    i = i > gone ? i - gone : 0;
  }
}

}  // namespace ort_aie::graph
