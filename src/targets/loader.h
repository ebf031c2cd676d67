// The libraries that have an NPU as a target, beside this one. They are loaded when one is asked
// for, so that this library needs nothing of an NPU's software.
#pragma once

#include <compare>
#include <memory>
#include <string>

#include "targets/target.h"

namespace ort_aie {

enum class NpuLibrary {
  kXrt,  // libort_aie_xrt.so: AMD's XRT
  kSim,  // libort_aie_sim.so: the modelled NPU
};

// Values of the session options of these names.
struct NpuOptions {
  std::string on_device_error, log, overlays;
  auto operator<=>(const NpuOptions&) const = default;
};

// The target of a session, open for as long as somebody has it. `session` tells sessions apart
// while they live: what a target has of weights is true for one of them. Throws Error.
std::shared_ptr<const Target> OpenNpuTarget(NpuLibrary library, const NpuOptions& options,
                                            const void* session);

// Whether the library lies beside this one: a build without XRT's headers has none.
bool IsInstalled(NpuLibrary library);

// Whether this machine has an NPU of AMD's with its driver, as /sys/class/accel tells.
// ORT_AIE_SYSFS names another /sys (for tests).
bool HasNpu();

// Loads the library of kXrt, and says which file of XRT it found. Throws Error.
std::string XrtLibrary();

// What the targets of this process have done: {"xrt": counters, "sim": counters} in JSON, of the
// libraries that were loaded.
std::string NpuCounters();

}  // namespace ort_aie
