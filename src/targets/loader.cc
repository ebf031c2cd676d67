#include "targets/loader.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/libraries.h"
#include "base/platform.h"
#include "targets/module.h"

namespace ort_aie {
namespace {

namespace fs = std::filesystem;

struct Names {
  const char* target;
  const char* file;
};

// The XRT library that the xrt target needs, by the name with which it was linked. An XRT built
// from source has the same name (XRT_SOVERSION is the major version).
constexpr char kXrt[] = "libxrt_coreutil.so.2";

// Folders of an XRT that the loader does not know: the one of setup.sh, and the one of AMD's own
// packages (XRT: CMAKE_INSTALL_PREFIX and setup.sh of its packages). XRT finds its plugins relative
// to its own place (xilinx_xrt in core/common/module_loader.cpp).
std::vector<fs::path> XrtFolders() {
  std::vector<fs::path> folders;
  const std::string set = platform::TrustedEnvironment("XILINX_XRT");
  if (set.starts_with('/')) folders.push_back(fs::path(set) / "lib");
  const fs::path usual = "/opt/xilinx/xrt/lib";
  if (folders.empty() || folders.front() != usual) folders.push_back(usual);
  return folders;
}

// Loads XRT from these folders, so that the loader finds it for libraries that need it. Returns
// what went wrong, if it is not loaded.
std::string LoadXrt() {
  std::string looked;
  for (const fs::path& folder : XrtFolders()) {
    std::error_code ignored;
    const fs::path library = folder / kXrt;
    if (fs::exists(library, ignored)) {
      if (platform::OpenLibrary(library.string().c_str()) != nullptr) return "";
      return Concat("; and ", platform::WhyNoLibrary());
    }
    looked += Concat(looked.empty() ? "" : " or ", folder.string());
  }
  return Concat("; it is also missing from ", looked);
}

// The file of XRT that this process has loaded, or nothing.
std::string LoadedXrt() {
  std::string found;
  const auto is_xrt = [](const char* path, void* result) {
    if (!fs::path(path).filename().string().starts_with(kXrt)) return false;
    *static_cast<std::string*>(result) = path;
    return true;
  };
  platform::FindLoaded(is_xrt, &found);
  return found;
}

Names NamesOf(NpuLibrary library) {
  return library == NpuLibrary::kXrt ? Names{"xrt", "libort_aie_xrt.so"}
                                     : Names{"sim", "libort_aie_sim.so"};
}

fs::path PathOf(NpuLibrary library) {
  char here[4096] = "";
  platform::PathOfCode(reinterpret_cast<const void*>(&NamesOf), here, sizeof(here));
  return platform::PathOf(here).parent_path() / NamesOf(library).file;
}

struct Functions {
  OpenTargetFunction* open = nullptr;
  CloseTargetFunction* close = nullptr;
  TargetCountersFunction* counters = nullptr;
};

std::string TakeText(char* text) {
  const std::unique_ptr<char, decltype(&std::free)> owned(text, &std::free);
  return text != nullptr ? text : "";
}

// The library itself. Throws Error if it is missing or does not load.
void* Open(NpuLibrary library) {
  const Names names = NamesOf(library);
  if (!platform::kHasNpuTargets) {
    Fail(ErrorCode::kInvalidArgument, "ort_aie.target=", names.target,
         ": this target exists on Linux only; use auto or host");
  }
  const fs::path path = PathOf(library);
  if (!IsInstalled(library)) {
    Fail(ErrorCode::kInvalidArgument, "ort_aie.target=", names.target,
         ": this build has no such target, because it was built without XRT's headers (there is ",
         "no ", path.string(), "); install libxrt-dev and build again, or use auto or host");
  }
  void* handle = platform::OpenLibrary(path.string().c_str());
  std::string why = handle == nullptr ? platform::WhyNoLibrary() : "";
  if (library == NpuLibrary::kXrt && why.find(kXrt) != std::string::npos) {
    const std::string more = LoadXrt();
    handle = platform::OpenLibrary(path.string().c_str());
    why = more.empty() && handle == nullptr ? platform::WhyNoLibrary() : why + more;
  }
  if (handle == nullptr) {
    Fail(ErrorCode::kRuntime, "ort_aie.target=", names.target, ": ", why,
         library == NpuLibrary::kXrt ? "; install XRT with its NPU plugin (packages libxrt2 and "
                                       "libxrt-npu2)"
                                     : "");
  }
  return handle;
}

// Loaded libraries. They are never unloaded, because their threads and statics remain.
class Libraries {
 public:
  static Libraries& OfProcess() {
    static auto& libraries = *new Libraries();
    return libraries;
  }

  const Functions& Load(NpuLibrary library) {
    const std::lock_guard lock(mutex_);
    const auto known = loaded_.find(library);
    if (known != loaded_.end()) return known->second;
    const fs::path path = PathOf(library);
    void* const handle = Open(library);
    Functions functions;
    functions.open = Symbol<OpenTargetFunction>(handle, kOpenTarget, path);
    functions.close = Symbol<CloseTargetFunction>(handle, kCloseTarget, path);
    functions.counters = Symbol<TargetCountersFunction>(handle, kTargetCounters, path);
    return loaded_[library] = functions;
  }

  std::string Counters() {
    const std::lock_guard lock(mutex_);
    std::string text = "{";
    for (const auto& [library, functions] : loaded_) {
      text += Concat(text.size() > 1 ? "," : "", Quoted(NamesOf(library).target), ":",
                     TakeText(functions.counters()));
    }
    return text + "}";
  }

 private:
  template <typename Function>
  static Function* Symbol(void* handle, const char* name, const fs::path& path) {
    void* symbol = platform::FindSymbol(handle, name);
    if (symbol == nullptr) {
      Fail(ErrorCode::kRuntime, path.string(), " has no ", name, ": reinstall ort_aie_ep");
    }
    return reinterpret_cast<Function*>(symbol);
  }

  std::mutex mutex_;
  std::map<NpuLibrary, Functions> loaded_;
};

}  // namespace

std::shared_ptr<const Target> OpenNpuTarget(NpuLibrary library, const NpuOptions& options,
                                            const void* session) {
  using Key = std::tuple<NpuLibrary, NpuOptions, const void*>;
  static std::mutex mutex;
  static auto& targets = *new std::map<Key, std::weak_ptr<const Target>>();
  const Functions& functions = Libraries::OfProcess().Load(library);
  const std::lock_guard lock(mutex);
  std::erase_if(targets, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const Target>& known = targets[{library, options, session}];
  if (std::shared_ptr<const Target> target = known.lock()) return target;
  const std::string text =
      Concat("{\"on_device_error\":", Quoted(options.on_device_error),
             ",\"log\":", Quoted(options.log), ",\"overlays\":", Quoted(options.overlays), "}");
  char* error = nullptr;
  const Target* opened = functions.open(text.c_str(), &Trace::OfProcess(), &error);
  if (opened == nullptr) {
    Fail(ErrorCode::kRuntime, "ort_aie.target=", NamesOf(library).target, ": ", TakeText(error));
  }
  std::shared_ptr<const Target> target(opened, functions.close);
  known = target;
  return target;
}

bool IsInstalled(NpuLibrary library) {
  std::error_code ignored;
  return fs::exists(PathOf(library), ignored);
}

bool HasNpu() {
  if (!platform::kHasNpuTargets) return false;
  const std::string other = platform::Environment("ORT_AIE_SYSFS");
  const fs::path sys = other.empty() ? "/sys" : other;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(sys / "class" / "accel", error)) {
    std::string vendor;
    std::ifstream(entry.path() / "device" / "vendor") >> vendor;
    if (vendor == "0x1022") return true;
  }
  return false;
}

std::string XrtLibrary() {
  Open(NpuLibrary::kXrt);  // stays loaded, as in Libraries
  return LoadedXrt();
}

std::string NpuCounters() { return Libraries::OfProcess().Counters(); }

}  // namespace ort_aie
