// The library that a compiled onnxruntime-genai folder carries: genai loads custom ops from the
// model folder only. It finds the installed libort_aie_ep.so and hands the call on. It holds no
// code of the ops, so a folder never runs an older copy of them.
//
// Searched, in this order:
//   1. ORT_AIE_LIBRARY in the environment (a path),
//   2. a libort_aie_ep.so that the process has loaded, or that the dynamic loader finds,
//   3. the package ort_aie_ep beside any loaded library's package (site-packages).
#include <dlfcn.h>
#include <link.h>
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace {

using RegisterFunction = OrtStatus*(ORT_API_CALL*)(OrtSessionOptions*, const OrtApiBase*);

constexpr char kLibrary[] = "libort_aie_ep.so";
constexpr char kInPackage[] = "/ort_aie_ep/libort_aie_ep.so";

// Tries the ancestors of one loaded library: .../site-packages/onnxruntime_genai/x.so.
int TryBeside(struct dl_phdr_info* info, size_t, void* found) {
  char path[4096];
  if (info->dlpi_name == nullptr) return 0;
  const size_t length = strlen(info->dlpi_name);
  if (length == 0 || length + sizeof(kInPackage) >= sizeof(path)) return 0;
  memcpy(path, info->dlpi_name, length + 1);
  for (int level = 0; level < 3; ++level) {
    char* slash = strrchr(path, '/');
    if (slash == nullptr) return 0;
    memcpy(slash, kInPackage, sizeof(kInPackage));
    FILE* file = fopen(path, "rb");
    if (file != nullptr) {
      fclose(file);
      memcpy(found, path, strlen(path) + 1);
      return 1;
    }
    *slash = '\0';
  }
  return 0;
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
    char path[4096] = "";
    // The file is opened after the walk: the loader holds a lock during it.
    if (dl_iterate_phdr(TryBeside, path) == 0)
      return Fail(api, "libort_aie_ep.so was not found", "");
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return Fail(api, "libort_aie_ep.so cannot be loaded", dlerror());
  }
  // The handle is kept: sessions go on using the library.
  RegisterFunction register_custom_ops;
  void* symbol = dlsym(library, "RegisterCustomOps");
  if (symbol == nullptr) return Fail(api, "libort_aie_ep.so has no RegisterCustomOps", dlerror());
  memcpy(&register_custom_ops, &symbol, sizeof(symbol));
  return register_custom_ops(options, base);
}
