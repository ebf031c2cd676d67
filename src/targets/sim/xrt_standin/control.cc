#include "targets/sim/control.h"

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include "targets/sim/xrt_standin/faults.h"
#include "targets/sim/xrt_standin/npu.h"

using ort_aie::sim::Faults;
using ort_aie::sim::Json;
using ort_aie::sim::Npu;
using ort_aie::sim::Totals;

#define ORT_AIE_SIM_EXPORT extern "C" __attribute__((visibility("default")))

ORT_AIE_SIM_EXPORT void ort_aie_sim_get_counts(ort_aie_sim_counts* counts) {
  const Totals& totals = Totals::Get();
  counts->buffers = totals.buffers;
  counts->buffer_bytes = totals.buffer_bytes;
  counts->instruction_bytes = totals.instruction_bytes;
  counts->contexts = totals.contexts;
  counts->runs = totals.runs;
  counts->bytes_synced = totals.bytes_synced;
  counts->device_seconds = static_cast<double>(totals.device_nanoseconds) * 1e-9;
}

ORT_AIE_SIM_EXPORT int ort_aie_sim_inject(const char* faults) {
  try {
    Faults::Get().Set(faults == nullptr ? "" : faults);
    return 0;
  } catch (const std::exception&) {
    return -1;
  }
}

ORT_AIE_SIM_EXPORT int ort_aie_sim_child(void) { return Npu::ChildProcess(); }

ORT_AIE_SIM_EXPORT void ort_aie_sim_plug_in(void) { Npu::PlugIn(); }

ORT_AIE_SIM_EXPORT int ort_aie_sim_write_packages(const char* folder, char* error, size_t bytes) {
  std::string message;
  try {
    const std::string path = std::filesystem::absolute(folder);
    const Json reply = Npu::Open()->child().Ask({{"op", "packages"}, {"folder", path}});
    if (reply.value("ok", false)) return 0;
    message = reply.value("error", "");
  } catch (const std::exception& exception) {
    message = exception.what();
  }
  if (bytes > 0) std::snprintf(error, bytes, "%s", message.c_str());
  return -1;
}
