// The library that a compiled onnxruntime-genai folder carries, because genai loads custom ops from
// the model folder only. It finds the installed library and forwards the call. It contains
// no code of the ops, so a folder never runs an older copy of them.
//
// It searches, in this order:
//   1. ORT_AIE_LIBRARY in the environment (a path),
//   2. an ort_aie_ep library that the process has loaded, or that the dynamic loader finds,
//   3. the package ort_aie_ep in the site-packages of the onnxruntime package that calls, then in
//      that of a loaded onnxruntime_genai package.
// A folder counts as site-packages only if one of these packages was loaded from it, by the names
// that their wheels have. The stub never opens anything beside a model or above it.
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <string.h>

#include "base/libraries.h"

namespace {

namespace platform = ort_aie::platform;

using RegisterFunction = OrtStatus*(ORT_API_CALL*)(OrtSessionOptions*, const OrtApiBase*);

constexpr char kLibrary[] = ORT_AIE_LIBRARY_NAME("ort_aie_ep");
constexpr char kInPackage[] = "/ort_aie_ep/" ORT_AIE_LIBRARY_NAME("ort_aie_ep");

constexpr size_t kLongestPath = 4096;

// Whether `path` is absolute and ends with `end`, like a package in a site-packages folder.
bool EndsWith(const char* path, const char* end) {
  const size_t length = strlen(path), rest = strlen(end);
  return platform::IsAbsolute(path) && length > rest && strcmp(path + length - rest, end) == 0;
}

// Writes the path of the ort_aie_ep library in the site-packages folder `path`, `length` bytes
// long. Returns whether it is a file.
bool TryIn(const char* path, size_t length, char* found) {
  if (length + sizeof(kInPackage) > kLongestPath) return false;
  memcpy(found, path, length);
  memcpy(found + length, kInPackage, sizeof(kInPackage));
  return platform::IsRegularFile(found);
}

// Beside the onnxruntime package, whose libraries are in .../site-packages/onnxruntime/capi.
bool TryBesideRuntime(const OrtApiBase* base, char* found) {
  constexpr char kFolder[] = "/onnxruntime/capi";
  const void* function;
  memcpy(&function, &base->GetApi, sizeof(function));
  char folder[kLongestPath];
  if (!platform::PathOfCode(function, folder, sizeof(folder))) return false;
  char* const slash = strrchr(folder, '/');
  if (slash == nullptr) return false;
  *slash = '\0';
  return EndsWith(folder, kFolder) && TryIn(folder, strlen(folder) - strlen(kFolder), found);
}

// Beside a loaded .../site-packages/onnxruntime_genai/libonnxruntime-genai.so.
bool TryBesideGenai(const char* path, void* found) {
  constexpr char kLoaded[] = "/onnxruntime_genai/" ORT_AIE_LIBRARY_NAME("onnxruntime-genai");
  return EndsWith(path, kLoaded) &&
         TryIn(path, strlen(path) - strlen(kLoaded), static_cast<char*>(found));
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

ORT_AIE_EXPORT OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                         const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(1);
  void* library = nullptr;
  char path[kLongestPath] = "";
  if (platform::ReadEnvironment("ORT_AIE_LIBRARY", path, sizeof(path))) {
    library = platform::OpenLibrary(path);
    if (library == nullptr) {
      return Fail(api, "ORT_AIE_LIBRARY cannot be loaded", platform::WhyNoLibrary());
    }
  }
  if (library == nullptr) library = platform::OpenLibrary(kLibrary);
  if (library == nullptr) {
    // The file is opened after the walk, because no library can be loaded during it.
    if (!TryBesideRuntime(base, path) && !platform::FindLoaded(TryBesideGenai, path)) {
      return Fail(api, ORT_AIE_LIBRARY_NAME("ort_aie_ep") " was not found", "");
    }
    library = platform::OpenLibrary(path);
    if (library == nullptr) {
      return Fail(api, ORT_AIE_LIBRARY_NAME("ort_aie_ep") " cannot be loaded",
                  platform::WhyNoLibrary());
    }
  }
  // The handle is kept, because sessions go on using the library.
  RegisterFunction register_custom_ops;
  void* symbol = platform::FindSymbol(library, "RegisterCustomOps");
  if (symbol == nullptr) {
    return Fail(api, ORT_AIE_LIBRARY_NAME("ort_aie_ep") " has no RegisterCustomOps",
                platform::WhyNoLibrary());
  }
  memcpy(&register_custom_ops, &symbol, sizeof(symbol));
  return register_custom_ops(options, base);
}
