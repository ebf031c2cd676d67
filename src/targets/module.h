// The exports of libort_aie_xrt.so and libort_aie_sim.so, which targets/loader.cc calls. Texts are
// JSON in UTF-8; the caller frees returned texts with free().
#pragma once

#include "targets/target.h"
#include "targets/trace.h"

namespace ort_aie {

// {"on_device_error": "host" or "raise", "log": "warning", "quiet" or "trace", "overlays": folders
// separated by :}. The library also records its work in `trace`, unless that is null. Returns null,
// with a message in `error`, if there is no device or no overlay for it.
using OpenTargetFunction = const Target*(const char* options, Trace* trace, char** error);
using CloseTargetFunction = void(const Target* target);
// Numbers by name, and in "host_steps" the numbers of steps that the host did, by reason.
using TargetCountersFunction = char*();

inline constexpr char kOpenTarget[] = "ort_aie_open_target";
inline constexpr char kCloseTarget[] = "ort_aie_close_target";
inline constexpr char kTargetCounters[] = "ort_aie_target_counters";

}  // namespace ort_aie
