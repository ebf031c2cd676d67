// Types and shapes that the model leaves out.
#pragma once

#include "graph/graph.h"
#include "ops/recipe.h"

namespace ort_aie::graph {

// Fills in types and shapes of what a step writes, if the model leaves them out and the op knows
// them. Exporters leave out the results of operators that ONNX does not know, and the nodes after
// these can become steps only if their shapes are known. Does nothing for a node that stays.
void InferShapes(Graph& graph, const Recipe::Step& step);

}  // namespace ort_aie::graph
