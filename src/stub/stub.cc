// The library that a compiled onnxruntime-genai folder carries, because genai loads custom ops from
// the model folder only. It finds the installed libort_aie_ep.so and forwards the call. It contains
// no code of the ops, so a folder never runs an older copy of them.
//
// It searches, in this order:
//   1. ORT_AIE_LIBRARY in the environment (a path),
//   2. a libort_aie_ep.so that the process has loaded, or that the dynamic loader finds,
//   3. the package ort_aie_ep in the site-packages of the onnxruntime package that calls, then in
//      that of a loaded onnxruntime_genai package.
// A folder counts as site-packages only if one of these packages was loaded from it, by the names
// that their wheels have. The stub never opens anything beside a model or above it.
#include <dlfcn.h>
#include <link.h>
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

namespace {

using RegisterFunction = OrtStatus*(ORT_API_CALL*)(OrtSessionOptions*, const OrtApiBase*);

constexpr char kLibrary[] = "libort_aie_ep.so";
constexpr char kInPackage[] = "/ort_aie_ep/libort_aie_ep.so";

constexpr size_t kLongestPath = 4096;

// Whether `path` is absolute and ends with `end`, like a package in a site-packages folder.
bool EndsWith(const char* path, const char* end) {
  const size_t length = strlen(path), rest = strlen(end);
  return path[0] == '/' && length > rest && strcmp(path + length - rest, end) == 0;
}

// Writes the path of the ort_aie_ep library in the site-packages folder `path`, `length` bytes
// long. Returns whether it is a file.
bool TryIn(const char* path, size_t length, char* found) {
  if (length + sizeof(kInPackage) > kLongestPath) return false;
  memcpy(found, path, length);
  memcpy(found + length, kInPackage, sizeof(kInPackage));
  struct stat status;
  return stat(found, &status) == 0 && S_ISREG(status.st_mode);
}

// Beside the onnxruntime package, whose libraries are .../site-packages/onnxruntime/capi/*.so.
bool TryBesideRuntime(const OrtApiBase* base, char* found) {
  constexpr char kFolder[] = "/onnxruntime/capi";
  Dl_info info;
  const void* function;
  memcpy(&function, &base->GetApi, sizeof(function));
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return false;
  char folder[kLongestPath];
  const char* slash = strrchr(info.dli_fname, '/');
  if (slash == nullptr) return false;
  const size_t length = static_cast<size_t>(slash - info.dli_fname);
  if (length >= sizeof(folder)) return false;
  memcpy(folder, info.dli_fname, length);
  folder[length] = '\0';
  return EndsWith(folder, kFolder) && TryIn(folder, length - strlen(kFolder), found);
}

// Beside a loaded .../site-packages/onnxruntime_genai/libonnxruntime-genai.so.
int TryBesideGenai(struct dl_phdr_info* info, size_t, void* found) {
  constexpr char kLoaded[] = "/onnxruntime_genai/libonnxruntime-genai.so";
  const char* path = info->dlpi_name;
  if (path == nullptr || !EndsWith(path, kLoaded)) return 0;
  return TryIn(path, strlen(path) - strlen(kLoaded), static_cast<char*>(found)) ? 1 : 0;
}

OrtStatus* Fail(const OrtApi* api, const char* what, const char* detail) {
  char message[8192];
  snprintf(message, sizeof(message),
           "%s%s%s. This model was compiled by ort-aie and needs the ort_aie_ep library: install "
           "the Python package ort_aie_ep in this environment, or set ORT_AIE_LIBRARY to the path "
           "of %s.",
           what, detail[0] != '\0' ? ": " : "", detail, kLibrary);
  return api->CreateStatus(ORT_FAIL, message);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* ORT_API_CALL
RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(1);
  void* library = nullptr;
  const char* chosen = getenv("ORT_AIE_LIBRARY");
  if (chosen != nullptr && chosen[0] != '\0') {
    library = dlopen(chosen, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return Fail(api, "ORT_AIE_LIBRARY cannot be loaded", dlerror());
  }
  if (library == nullptr) library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    char path[kLongestPath] = "";
    // The file is opened after the walk, because the loader holds a lock during it.
    if (!TryBesideRuntime(base, path) && dl_iterate_phdr(TryBesideGenai, path) == 0) {
      return Fail(api, "libort_aie_ep.so was not found", "");
    }
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return Fail(api, "libort_aie_ep.so cannot be loaded", dlerror());
  }
  // The handle is kept, because sessions go on using the library.
  RegisterFunction register_custom_ops;
  void* symbol = dlsym(library, "RegisterCustomOps");
  if (symbol == nullptr) return Fail(api, "libort_aie_ep.so has no RegisterCustomOps", dlerror());
  memcpy(&register_custom_ops, &symbol, sizeof(symbol));
  return register_custom_ops(options, base);
}
