#include "graph/fusions.h"

namespace ort_aie::graph {

void FuseAll(Steps& steps) {
  FuseBias(steps);
  FuseGatedMLP(steps);
  FuseHeads(steps);
  FuseNorms(steps);
  FuseSigmoidRouter(steps);
  FuseRouter(steps);
  MarkLogits(steps);
  steps.Sort();
}

}  // namespace ort_aie::graph
