// Changes to attention steps that depend on the rest of the graph.
#pragma once

#include <vector>

#include "graph/steps.h"

namespace ort_aie::graph {

// Drops the present of an attention that has no new keys, where nothing reads it: a cache that
// another attention wrote is then read where it is.
void ReadSharedCaches(const Graph& graph, std::vector<Item>& items);

// Sets float32_products of each attention whose queries, keys and values depend on no projection.
// Projections round their activations as much as products of bfloat16 round queries and keys; where
// nothing else is rounded, prompts are multiplied in float32 (docs/flow-attention.md, "Numerics").
void ChooseProducts(const Graph& graph, std::vector<Item>& items);

}  // namespace ort_aie::graph
