// Which steps are computed together: maximal convex regions. No step of a region depends on another
// step of the same region through nodes outside of it.
#pragma once

#include <vector>

#include "graph/steps.h"
#include "ops/recipe.h"

namespace ort_aie::graph {

struct Region {
  std::vector<int> items;  // in topological order
  // Values of the graph. The constants, including packed weights, are at the end of `inputs`.
  std::vector<int> inputs, outputs;
  size_t constants = 0;  // how many of the inputs, counted from the end
  Recipe recipe;         // its inputs are these inputs, constants included
};

// kLayers: a region is divided before each attention but the first, into parts that depend on
// earlier parts only. ONNX Runtime looks between nodes whether its caller has stopped the run.
enum class Grouping { kRegions, kLayers, kStepByStep };

// Each anchor (claims.h) is in exactly one region. The steps between two anchors of a region are in
// it too. No other step is in a region.
std::vector<Region> FindRegions(const Steps& steps, Grouping grouping = Grouping::kRegions);

// For regions that become nodes of the CPU EP. ONNX Runtime gives such a node float in place of
// float16 if the nodes around it accept float only, and for a node with any number of inputs it
// decides this by the first one. The steps would then compute something other than they do as
// nodes, and steps that name a type (Cast) would not fit the others. So an input of another type is
// moved to the first place.
void KeepFloat16(const Steps& steps, Region& region);

}  // namespace ort_aie::graph
