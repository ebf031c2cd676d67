// Types and shapes that the model leaves out or names.
#pragma once

#include <optional>

#include "graph/graph.h"
#include "ops/recipe.h"

namespace ort_aie::graph {

// Fills in types and shapes of what a step writes, if the model leaves them out and the op knows
// them. Exporters leave out the results of operators that ONNX does not know, and the nodes after
// these can become steps only if their shapes are known. Does nothing for a node that stays.
// An exporter may also have given a name to a number that it did not compute; the number replaces
// the name.
void InferShapes(Graph& graph, const Recipe::Step& step);

// The same for the results of a Reshape to constant sizes, of a Split and of a Transpose.
void InferMove(Graph& graph, const Node& node);

// The first of two neighbouring dimensions, if a Transpose only makes these change places.
std::optional<size_t> SwappedAxis(const Node& node, size_t rank);

}  // namespace ort_aie::graph
