// The parts of a graph that the execution provider claims: regions of steps (graph/regions.h). ONNX
// Runtime makes one node of each region.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/regions.h"
#include "ops/recipe.h"
#include "ort/ep/graph_reader.h"
#include "q4nx/experts.h"

namespace ort_aie::ep {

// A MatMulNBits whose weights are packed; its initializers by name.
struct MatMulWeights {
  std::string b, scales, zero_points;  // zero_points: empty if absent
  int64_t n = 0, k = 0, bits = 4, block_size = 0;
  WeightForm form = {};
};

// A constant of a QMoE; the initializers that it is made from, by name. A bias has no scales.
struct ExpertPart {
  std::string source, scales, zero_points;  // zero_points: empty if absent
  int64_t experts = 0;
  q4nx::ExpertLayout layout = {};
};

// A region by names, which stay the same when ONNX Runtime copies the region into a graph of its
// own.
struct ClaimedRegion {
  struct Constant {
    std::string name;  // of an initializer, or of the weights in errors
    std::optional<MatMulWeights> weights = std::nullopt;
    std::optional<ExpertPart> experts = std::nullopt;

    // Whether it is an initializer as it is.
    bool is_initializer() const { return !weights && !experts; }
  };
  std::vector<size_t> nodes;  // their ids, ascending
  // Its first values are `inputs`, followed by `constants`, whose ranges have only sizes.
  Recipe recipe;
  std::vector<std::string> inputs, outputs;
  std::vector<Constant> constants;
};

struct Claims {
  struct Left {
    std::string node, why;
  };
  std::vector<ClaimedRegion> regions;
  std::vector<Left> left;  // nodes that stay, with the reason
};

// Nodes that read one of the initializers `replaced` stay, because the session gives these another
// value than the graph does.
Claims Claim(graph::Graph graph, const std::vector<size_t>& ids,
             const std::set<std::string>& replaced, graph::Grouping grouping);

}  // namespace ort_aie::ep
