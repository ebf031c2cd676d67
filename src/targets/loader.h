// The libraries next to this one that have an NPU as a target. They are loaded on demand, so that
// this library does not need the software of any NPU.
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

// The values of the session options with these names.
struct NpuOptions {
  std::string on_device_error, log, overlays;
  auto operator<=>(const NpuOptions&) const = default;
};

// The target of a session, open as long as anything holds it. `session` distinguishes sessions
// while they live, because what a target keeps of weights is valid only for one of them. Throws
// Error.
std::shared_ptr<const Target> OpenNpuTarget(NpuLibrary library, const NpuOptions& options,
                                            const void* session);

// Whether the library is next to this one; it is missing in a build without XRT's headers, and on
// Windows.
bool IsInstalled(NpuLibrary library);

// Whether this machine has an AMD NPU with its driver, according to /sys/class/accel. ORT_AIE_SYSFS
// names another /sys (for tests).
bool HasNpu();

// Loads the library of kXrt, and returns the file of XRT that it found. Throws Error.
std::string XrtLibrary();

// What the targets of this process have done: {"xrt": counters, "sim": counters} in JSON, for the
// libraries that were loaded.
std::string NpuCounters();

}  // namespace ort_aie
