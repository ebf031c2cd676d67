// What libort_aie_xrt.so and libort_aie_sim.so export: targets/loader.cc calls it. Texts are JSON
// in UTF-8; those that are returned are for free().
#pragma once

#include "targets/target.h"
#include "targets/trace.h"

namespace ort_aie {

// {"on_device_error": "host" or "raise", "log": "warning", "quiet" or "trace", "overlays": folders
// with : between}. What the library does is in `trace` as well, unless it is null. Null, and a
// message in `error`, when there is no device or no overlay for it.
using OpenTargetFunction = const Target*(const char* options, Trace* trace, char** error);
using CloseTargetFunction = void(const Target* target);
// Numbers by name, and numbers of steps that the host did by reason in "host_steps".
using TargetCountersFunction = char*();

inline constexpr char kOpenTarget[] = "ort_aie_open_target";
inline constexpr char kCloseTarget[] = "ort_aie_close_target";
inline constexpr char kTargetCounters[] = "ort_aie_target_counters";

}  // namespace ort_aie
