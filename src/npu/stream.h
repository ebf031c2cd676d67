// A plan as instruction streams, one for each run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "npu/interpreter.h"
#include "npu/manifest.h"

namespace ort_aie::npu {

// The driver gives up after 2 s; no run may be predicted to come near that.
constexpr double kMaxRunSeconds = 0.5;
// From submission to completion of a run that does nothing: 66 to 89 µs were measured on Strix (the
// dispatch benchmark of fifield/mlir-aie).
constexpr double kDispatchSeconds = 100e-6;

// Buffers that a run has at most: mlir-aie's kernels have as many arguments.
constexpr size_t kRunBuffers = 5;

struct Run {
  std::vector<uint32_t> words;     // complete, header included
  std::vector<uint32_t> variable;  // indices of words that hold a length, an address or a parameter
  double predicted_seconds;
  std::vector<OpSource> sources;  // of every operation
  std::vector<int> buffers;       // of the plan, that are the run's arguments 0, 1, ...
};

struct Stream {
  std::vector<Run> runs;
};

// A plan of at most kRunBuffers buffers is one run, whose arguments are these, unless it is
// predicted to take more than kMaxRunSeconds. One of more buffers is divided into runs that each
// touch as many as they can have. Raises as Interpret does, and for a stretch without a cut that
// takes too long or touches too many.
Stream BuildStream(const Manifest& manifest, const Plan& plan);

}  // namespace ort_aie::npu
