#include "graph/fusions.h"

namespace ort_aie::graph {

void FuseAll(Steps& steps) {
  FuseBias(steps);
  FuseGatedMLP(steps);
  FuseHeadNorms(steps);
  FuseNorms(steps);
  steps.Sort();
}

}  // namespace ort_aie::graph
