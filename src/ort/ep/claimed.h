// What the execution provider takes of a graph: regions of steps (graph/regions.h), each of which
// ONNX Runtime makes one node of.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ops/recipe.h"
#include "ort/ep/graph_reader.h"

namespace ort_aie::ep {

// A MatMulNBits whose weights are packed; its initializers by name.
struct MatMulWeights {
  std::string b, scales, zero_points;  // zero_points: empty where there are none
  int64_t n = 0, k = 0, bits = 4, block_size = 0;
};

// A region by names, which stay when ONNX Runtime has the region in a graph of its own.
struct ClaimedRegion {
  struct Constant {
    std::string name;  // of an initializer, or what errors call the weights
    std::optional<MatMulWeights> weights = std::nullopt;
  };
  std::vector<size_t> nodes;  // their ids, ascending
  // Its first values are `inputs`, then follow `constants`, whose spans have sizes only.
  Recipe recipe;
  std::vector<std::string> inputs, outputs;
  std::vector<Constant> constants;
};

struct Claims {
  struct Left {
    std::string node, why;
  };
  std::vector<ClaimedRegion> regions;
  std::vector<Left> left;  // nodes that stay for a reason
};

Claims Claim(graph::Graph graph, const std::vector<size_t>& ids);

}  // namespace ort_aie::ep
