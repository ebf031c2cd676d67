// The executor on a device that executes references, compared with the host target's portable
// kernels (ORT_AIE_ISA=portable), which accumulate in float32 and round only activations of
// projections.
//
//   executor_test MANIFESTS CASE
//
// MANIFESTS/<device>/<design>.json. Exit status 1 and a line with the reason when a case fails.
#include <cstdio>
#include <exception>

#include "bench.h"

int main(int argc, char** argv) {
  using namespace ort_aie::npu_target;
  if (argc != 3 || !Cases::All().contains(argv[2])) {
    std::fprintf(stderr, "usage: executor_test MANIFESTS CASE\n");
    return 2;
  }
  Manifests() = argv[1];
  try {
    Cases::All().at(argv[2])();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[2], error.what());
    return 1;
  }
  return 0;
}
