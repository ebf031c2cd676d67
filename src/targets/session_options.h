// Options of a session: session config entries `ort_aie.<name>`, else the environment
// `ORT_AIE_<NAME>`, else the default.
//
//   target           auto (an NPU if this machine has one, else the host), host, xrt, sim
//   numerics         auto, bf16, int8
//   on_device_error  host (go on there when a device is missing or fails), raise
//   log              warning, quiet, trace (a timeline is written, see targets/trace.h)
//   overlays         folders with design packages, : between
//   prompt_chunk     tokens of a prompt that an operator works on at a time, about: each rounds to
//                    what its kernels take
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ops/options.h"
#include "targets/target.h"

namespace ort_aie {

struct SessionOptions : Options {
  std::shared_ptr<const void> trace;  // of who asked for one: it is on for as long
  std::shared_ptr<const Target> target;
};

bool IsOption(std::string_view name);
// The names, for messages.
std::string OptionNames();

// entry(name) gives the session's config entry ort_aie.<name>, if it has one.
using ConfigEntry = std::function<std::optional<std::string>(const char* name)>;

// `session` tells sessions apart while they live: the nodes of one share a target. Throws Error
// naming the option, the value and what is accepted, or why its device cannot be used.
SessionOptions ReadOptions(const ConfigEntry& entry, const void* session);

}  // namespace ort_aie
