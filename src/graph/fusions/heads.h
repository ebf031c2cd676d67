// What FlowAttention takes in of the nodes before it. Each function says whether it changed the
// graph; the next one may then find more.
#pragma once

#include "graph/steps.h"

namespace ort_aie::graph {

// fusions/head_norms.cc: RMS norms of the heads of queries and keys, or of values.
bool FuseNormsOfHeads(Steps& steps, const Item* attention);
bool FuseNormOfValues(Steps& steps, const Item* attention);
// fusions/rotary.cc: rotation of queries and keys.
bool FuseRotation(Steps& steps, const Item* attention);
// fusions/heads.cc: the Split of a packed tensor.
bool FuseSplit(Steps& steps, const Item* attention);

}  // namespace ort_aie::graph
