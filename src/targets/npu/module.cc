// The library's entry points. Compiled once for the real XRT, and once, with ORT_AIE_SIMULATED, for
// the stand-in whose device is the simulator.
#include "targets/module.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "base/error.h"
#include "targets/npu/opened_target.h"
#include "targets/npu/xrt/overlays.h"
#include "targets/npu/xrt/xrt_device.h"

#ifdef ORT_AIE_SIMULATED
#include "targets/sim/control.h"
#endif

#define ORT_AIE_EXPORT extern "C" __attribute__((visibility("default")))

namespace ort_aie::npu_target {
namespace {

#ifdef ORT_AIE_SIMULATED
constexpr char kName[] = "sim";

// The packages of the modelled NPU cost only the time to write them.
std::vector<std::filesystem::path> Folders(const ModuleOptions& options) {
  std::vector<std::filesystem::path> folders = FoldersOf(options.overlays);
  const char* device = std::getenv("ORT_AIE_SIM_DEVICE");
  folders.push_back(CacheFolder("simulated_overlays") /
                    (device != nullptr && *device != '\0' ? device : "npu2"));
  return folders;
}

void Prepare(const std::vector<std::filesystem::path>& folders) {
  static std::mutex mutex;
  static std::set<std::filesystem::path> written;
  const std::lock_guard lock(mutex);
  if (written.contains(folders.back())) return;
  char error[1024] = "";
  if (ort_aie_sim_write_packages(folders.back().c_str(), error, sizeof(error)) != 0) {
    throw DeviceError(Fault::kNoOverlay,
                      Concat("the packages of the modelled NPU cannot be ", "written to ",
                             folders.back().string(), ": ", error));
  }
  written.insert(folders.back());
}
#else
constexpr char kName[] = "xrt";

std::vector<std::filesystem::path> Folders(const ModuleOptions& options) {
  std::vector<std::filesystem::path> folders = FoldersOf(options.overlays);
  folders.push_back(InstalledOverlays());
  folders.push_back(CacheFolder("overlays"));
  return folders;
}

void Prepare(const std::vector<std::filesystem::path>&) {}
#endif

}  // namespace
}  // namespace ort_aie::npu_target

ORT_AIE_EXPORT const ort_aie::Target* ort_aie_open_target(const char* options,
                                                          ort_aie::Trace* trace, char** error) {
  using namespace ort_aie::npu_target;
  if (trace != nullptr) ort_aie::Trace::UseThatOf(*trace);
  try {
    const ModuleOptions parsed = ParseOptions(options);
    const std::vector<std::filesystem::path> folders = Folders(parsed);
    const std::shared_ptr<Device> device = OpenDevice(folders);
    Prepare(folders);
    return OpenTarget(kName, device, folders, parsed).release();
  } catch (const std::exception& exception) {
    *error = strdup(exception.what());
    return nullptr;
  }
}

ORT_AIE_EXPORT void ort_aie_close_target(const ort_aie::Target* target) { delete target; }

ORT_AIE_EXPORT char* ort_aie_target_counters() {
  return strdup(ort_aie::npu_target::CountersText().c_str());
}

static_assert(std::is_same_v<decltype(ort_aie_open_target), ort_aie::OpenTargetFunction> &&
              std::is_same_v<decltype(ort_aie_close_target), ort_aie::CloseTargetFunction> &&
              std::is_same_v<decltype(ort_aie_target_counters), ort_aie::TargetCountersFunction>);
