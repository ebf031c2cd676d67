// Options of a session: session config entries `ort_aie.<name>`, else the environment
// `ORT_AIE_<NAME>`, else the default.
//
//   target           auto (an NPU if this machine has one, else the host), host, xrt, sim
//   numerics         auto, bf16, int8
//   on_device_error  host (continue there if a device is missing or fails), raise
//   log              warning, quiet, trace (writes a timeline, see targets/trace.h)
//   overlays         folders with design packages, separated by :
//   prompt_chunk     about how many tokens of a prompt an operator processes at a time; each rounds
//                    to a number that suits its kernels
//   prompt_logits    all, last (a prompt's output has all rows, but only the last ones get logits)
//   stoppable        no, yes (the execution provider makes a node of each layer on the host, so
//                    that ONNX Runtime can end a run between layers)
//   weights          on the host: auto (mapped, in pages of 2 MB where the system has them), mapped
//                    (as ONNX Runtime maps them), copied (into memory, in pages of 2 MB)
//   tune             on, off (the host tries kernels that give the same bits on the session's work,
//                    and uses the fastest, also what earlier processes found)
#pragma once

#include <map>
#include <memory>
#include <string>

#include "ops/options.h"
#include "targets/target.h"

namespace ort_aie {

enum class WeightMemory { kAuto, kMapped, kCopied };

struct SessionOptions : Options {
  bool stoppable = false;                        // on the host only
  WeightMemory weights = WeightMemory::kMapped;  // other values on the host only
  std::shared_ptr<const void> trace;             // on as long as a session that asked for it lives
  std::shared_ptr<const Target> target;
};

// The options that a session's host set, by name.
using Settings = std::map<std::string, std::string>;

// Throws Error for a name that is not an option, with the nearest one.
void CheckNames(const Settings& settings);

// `session` distinguishes sessions while they live: the nodes of one share a target. Throws Error
// naming the option, the value and what is accepted, or why its device cannot be used.
SessionOptions ReadOptions(const Settings& settings, const void* session);

}  // namespace ort_aie
