// Options of a session: session config entries `ort_aie.<name>`, else the environment
// `ORT_AIE_<NAME>`, else the default.
//
//   target           auto (an NPU if this machine has one, else the host), host, xrt, sim
//   numerics         auto, bf16, int8
//   on_device_error  host (go on there when a device is missing or fails), raise
//   log              warning, quiet, trace (a timeline is written, see targets/npu/xrt/trace.h)
//   overlays         folders with design packages, : between
//   prompt_chunk     tokens of a prompt that an operator works on at a time, about: each rounds to
//                    what its kernels take
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "targets/target.h"

namespace ort_aie {

enum class NumericsOption { kAuto, kBf16, kInt8 };

struct Options {
  std::shared_ptr<const Target> target;
  NumericsOption numerics = NumericsOption::kAuto;
  int64_t prompt_chunk = 0;  // tokens; 0: what the target finds best

  // auto follows the node's accuracy_level: int8 only where the model allows it (4), and on the
  // host alone, as no other target has it.
  Numerics NumericsFor(int64_t accuracy_level) const;
};

bool IsOption(std::string_view name);
// The names, for messages.
std::string OptionNames();

// entry(name) gives the session's config entry ort_aie.<name>, if it has one.
using ConfigEntry = std::function<std::optional<std::string>(const char* name)>;

// `session` tells sessions apart while they live: the nodes of one share a target. Throws Error
// naming the option, the value and what is accepted, or why its device cannot be used.
Options ReadOptions(const ConfigEntry& entry, const void* session);

}  // namespace ort_aie
