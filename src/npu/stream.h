// A plan as instruction streams, one for each run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "npu/interpreter.h"
#include "npu/manifest.h"

namespace ort_aie::npu {

// The driver's watchdog looks every 2 s whether something has ended (xdna-driver: aie2_tdr.c); no
// run may be predicted to come near that.
constexpr double kMaxRunSeconds = 0.5;
// From submission to completion of a run that does nothing: 66 to 89 µs were measured on Strix (the
// dispatch benchmark of fifield/mlir-aie).
constexpr double kDispatchSeconds = 100e-6;

// Buffers that a run has at most: mlir-aie's kernels have as many arguments.
constexpr size_t kRunBuffers = 5;

// Words after which a run is divided where it can be. No limit but the context's 64 MB of
// instructions is documented; this many are the longest stream that is known to have run (a token
// of gemma3-4b, of mlir-air's fused decode).
constexpr size_t kMaxRunWords = 166'210;

// A segment of a plan in the words of its run.
struct Piece {
  int invocation;
  size_t run, begin, end;    // words
  size_t variable, sources;  // where its own begin in those of the run
  uint64_t named_before;     // shim channels whose controller id is set, as bits
  double seconds;            // predicted
};

struct Run {
  std::vector<uint32_t> words;     // complete, header included
  std::vector<uint32_t> variable;  // indices of words that hold a length, an address or a parameter
  double predicted_seconds;
  std::vector<OpSource> sources;  // of every operation
  std::vector<int> buffers;       // of the plan, that are the run's arguments 0, 1, ...
};

struct Stream {
  std::vector<Run> runs;
  std::vector<Piece> pieces;  // in the order of the plan
};

// A plan of at most kRunBuffers buffers is one run, whose arguments are these, unless it is
// predicted to take more than kMaxRunSeconds or has more than kMaxRunWords. One of more buffers is
// divided into runs that each touch as many as they can have. Raises as Interpreter does, and for a
// stretch without a cut that takes too long or touches too many.
Stream BuildStream(Interpreter& interpreter, const Plan& plan);

struct WordRange {
  size_t run;
  size_t begin;  // words [begin, end)
  size_t end;
};

// Brings the stream of a plan to `plan`, which differs in the parameters and offsets of the
// invocations `changed` (ascending) at most, where that changes variable words alone and no run
// becomes too long: says which, ascending. Else nothing, and no change. Raises as BuildStream does.
std::optional<std::vector<WordRange>> PatchStream(Interpreter& interpreter, Stream& stream,
                                                  const Plan& plan,
                                                  const std::vector<size_t>& changed);

}  // namespace ort_aie::npu
