#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/libraries.h"

namespace ort_aie::platform {
namespace {

bool Copy(const char* text, char* to, size_t size) {
  if (text == nullptr || strlen(text) >= size) return false;
  memcpy(to, text, strlen(text) + 1);
  return true;
}

struct Search {
  bool (*is_it)(const char* path, void* context);
  void* context;
};

}  // namespace

void* OpenLibrary(const char* path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }

void* FindSymbol(void* library, const char* name) { return dlsym(library, name); }

const char* WhyNoLibrary() {
  const char* why = dlerror();
  return why != nullptr ? why : "";
}

bool PathOfCode(const void* address, char* path, size_t size) {
  Dl_info info;
  return dladdr(address, &info) != 0 && Copy(info.dli_fname, path, size);
}

bool FindLoaded(bool (*is_it)(const char* path, void* context), void* context) {
  Search search = {is_it, context};
  return dl_iterate_phdr(
             [](dl_phdr_info* info, size_t, void* data) {
               const Search& its = *static_cast<const Search*>(data);
               return info->dlpi_name != nullptr && its.is_it(info->dlpi_name, its.context) ? 1 : 0;
             },
             &search) != 0;
}

bool IsAbsolute(const char* path) { return path[0] == '/'; }

bool IsRegularFile(const char* path) {
  struct stat status;
  return stat(path, &status) == 0 && S_ISREG(status.st_mode);
}

bool ReadEnvironment(const char* name, char* value, size_t size) {
  const char* const found = getenv(name);
  return found != nullptr && found[0] != '\0' && Copy(found, value, size);
}

}  // namespace ort_aie::platform
