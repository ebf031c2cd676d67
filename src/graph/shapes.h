// Types and shapes that a model does not say.
#pragma once

#include "graph/graph.h"
#include "ops/recipe.h"

namespace ort_aie::graph {

// Of what a step writes, where the model does not say it and the op can tell: exporters leave out
// the results of operators that ONNX does not know, and what stands behind them is a step only if
// its shapes are known. Does nothing for a node that stays.
void InferShapes(Graph& graph, const Recipe::Step& step);

}  // namespace ort_aie::graph
