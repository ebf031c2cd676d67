// A plan as instruction streams, one per run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "npu/interpreter.h"
#include "npu/manifest.h"

namespace ort_aie::npu {

// The driver's watchdog checks every 2 s whether something has ended (xdna-driver: aie2_tdr.c). The
// predicted time of a run must stay far below that.
constexpr double kMaxRunSeconds = 0.5;
// From submission to completion of an empty run: 66 to 89 µs were measured on Strix (the dispatch
// benchmark of fifield/mlir-aie).
constexpr double kDispatchSeconds = 100e-6;

// XRT divides a list of runs into chains of so many (submit_size of runlist_impl in
// xrt_kernel.cpp). Each chain is one job for the driver (aie2_cmdlist_multi_execbuf in
// aie2_message.c). So the limit on the predicted time of a run applies to the runs of a chain
// together.
constexpr size_t kMaxListRuns = 24;

// The most buffers of a run: mlir-aie's kernels have as many arguments.
constexpr size_t kRunBuffers = 5;

// A run with more words is divided if possible. The only documented limit is the context's 64 MB of
// instructions. This many words are the longest stream that is known to have run (a token of
// gemma3-4b, of mlir-air's fused decode).
constexpr size_t kMaxRunWords = 166'210;

// A segment of a plan, as words of its run.
struct Piece {
  int invocation;
  size_t run, begin, end;    // words
  size_t variable, sources;  // where its own begin in those of the run
  uint64_t named_before;     // the shim channels whose controller id is set, as bits
  double seconds;            // predicted
};

struct Run {
  std::vector<uint32_t> words;     // complete, header included
  std::vector<uint32_t> variable;  // indices of words that hold a length, an address or a parameter
  double predicted_seconds;
  std::vector<OpSource> sources;  // of every operation
  std::vector<int> buffers;       // buffers of the plan that are the run's arguments 0, 1, ...
};

struct InstructionStream {
  std::vector<Run> runs;
  std::vector<Piece> pieces;  // in the order of the plan
};

// A plan of at most kRunBuffers buffers is one run, with these buffers as its arguments, unless it
// is predicted to take more than kMaxRunSeconds or has more than kMaxRunWords. A plan of more
// buffers is divided into runs that each touch as many as a run can have. Throws as Interpreter
// does, and for a stretch without a cut that takes too long or touches too many buffers.
InstructionStream BuildStream(Interpreter& interpreter, const Invocations& plan);

// How far a list of runs has been filled.
class ListRoom {
 public:
  // Whether another run still belongs to the list. The first always does.
  bool Fits(double seconds) const {
    return runs_ == 0 || (runs_ < kMaxListRuns && seconds_ + seconds <= kMaxRunSeconds);
  }
  void Add(double seconds) {
    ++runs_;
    seconds_ += seconds;
  }

 private:
  size_t runs_ = 0;
  double seconds_ = 0;
};

struct WordRange {
  size_t run;
  size_t begin;  // words [begin, end)
  size_t end;
};

// Changes the stream of a plan into that of `plan`, which may differ only in the parameters and
// offsets of the invocations `changed` (ascending). Works only if this changes nothing but variable
// words and no run becomes too long; returns the changed words, ascending. Else returns nothing and
// changes nothing. Throws as BuildStream does.
std::optional<std::vector<WordRange>> PatchStream(Interpreter& interpreter,
                                                  InstructionStream& stream,
                                                  const Invocations& plan,
                                                  const std::vector<size_t>& changed);

}  // namespace ort_aie::npu
