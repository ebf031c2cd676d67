// Which nodes are steps, and why not the others.
#pragma once

#include "graph/steps.h"

namespace ort_aie::graph {

// Nodes of the domain aie, and what stands between them in ONNX Runtime's and ONNX's own operators:
// RMS norms, additions, multiplications, activations, rows of a table, casts. With `sources` also
// what the passes make aie nodes of, by the same rules (ops/eligibility.h): MatMulNBits,
// GroupQueryAttention, GatherBlockQuantized.
Steps ClaimSteps(Graph graph, bool sources);

// Whether the step has weights or a cache: what a region is for. Others are in one because they
// stand between such.
bool IsAnchor(const Item& item);

// The (N, K) blocks that a MatMulNBits becomes, without their bytes.
Tensor PackedTensor(const Node& matmul);

}  // namespace ort_aie::graph
