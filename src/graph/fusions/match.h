// What several fusions ask of a graph.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/steps.h"

namespace ort_aie::graph {

// Inputs by position. A gated projection has the weights of up where others have a bias.
enum ProjectionInput { kA, kWeights, kBias, kNormWeight, kSkip };
enum NormInput { kNormA, kNormScale, kNormSkip };

inline bool IsMatMul(const Item* item) {
  return item != nullptr && (item->Is("Q4NXMatMul") || item->Is("GEMM"));
}
inline bool IsGatedMLP(const Item* item) {
  return item != nullptr && (item->Is("Q4NXGatedMLP") || item->Is("GatedGEMM"));
}

// Attributes of a step, with fallbacks: nobody has checked those of nodes of the domain aie.
inline StepInfo Attributes(const Item& item) { return StepInfo(item.step, {}); }

// The elements of a constant, where they are int64 and at hand.
std::optional<std::vector<int64_t>> Integers(const Value& value);

// The item that writes `value` as its first output.
const Item* MadeBy(const Steps& steps, int value);
// Both inputs of an Add or a Mul, be it a step or a node whose shapes nobody knows.
std::optional<std::pair<int, int>> Operands(const Steps& steps, const Item* item,
                                            std::string_view op);

// Calls fuse(item) for one item after the other, as they stand, until it changes nothing more. It
// says whether it has.
template <typename Fuse>
void FuseEach(Steps& steps, const Fuse& fuse) {
  for (size_t i = 0; i < steps.items().size();) {
    const size_t before = steps.items().size();
    if (!fuse(&steps.items()[i])) {
      ++i;
      continue;
    }
    // What was taken in may have stood before it.
    const size_t gone = before - steps.items().size();
    i = i > gone ? i - gone : 0;
  }
}

}  // namespace ort_aie::graph
