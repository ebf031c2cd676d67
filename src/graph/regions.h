// Which steps are computed together: maximal convex regions, of which nothing that a step reads
// depends, by way of nodes that stay outside, on what another step of it writes.
#pragma once

#include <vector>

#include "graph/steps.h"
#include "ops/recipe.h"

namespace ort_aie::graph {

struct Region {
  std::vector<int> items;  // in topological order
  // Values of the graph. `inputs` has constants behind the others; of packed weights, too.
  std::vector<int> inputs, outputs;
  size_t constants = 0;  // of the inputs, the last ones
  Recipe recipe;         // whose inputs are these inputs, constants among them
};

enum class Grouping { kRegions, kStepByStep };

// Each anchor is in one region (claims.h); what stands between two of them is in theirs, and no
// other step is in any.
std::vector<Region> FindRegions(const Steps& steps, Grouping grouping = Grouping::kRegions);

// For regions that become nodes of the CPU EP, where ONNX Runtime gives a node float in place of
// float16 if what is around it takes float alone, and judges one of any number of inputs by the
// first. Steps would not compute what they do as nodes, and those that say a type (Cast) would not
// fit to the others: an input of another type becomes the first.
void KeepFloat16(const Steps& steps, Region& region);

}  // namespace ort_aie::graph
