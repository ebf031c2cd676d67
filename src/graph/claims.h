// Which nodes become steps, and why the others do not.
#pragma once

#include "graph/steps.h"

namespace ort_aie::graph {

// Claims nodes of the domain aie, and the ONNX and ONNX Runtime operators between them:
// RMS norms, additions, multiplications, activations, rows of a table, one row of each batch row,
// casts. With `sources` also the nodes that the passes turn into aie nodes, by the same rules
// (ops/eligibility.h, graph/experts.h): MatMulNBits, QMoE, GroupQueryAttention,
// GatherBlockQuantized.
Steps ClaimSteps(Graph graph, bool sources);
// These sources alone, an item for each.
Steps ClaimSources(Graph graph);

// See OpDescription::anchor.
bool IsAnchor(const Item& item);

}  // namespace ort_aie::graph
