#include <windows.h>
// After windows.h, whose types it uses.
#include <psapi.h>
#include <stdio.h>

#include "base/libraries.h"

namespace ort_aie::platform {
namespace {

constexpr DWORD kLongestPath = 4096;  // UTF-16 code units; the stub's limit is as many bytes

thread_local char why_no_library[1024];

// False if `text` does not fit.
bool ToWide(const char* text, wchar_t* wide) {
  return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, wide, kLongestPath) > 0;
}

bool ToUtf8(const wchar_t* wide, char* text, size_t size) {
  const int most = static_cast<int>(size < 4 * kLongestPath ? size : 4 * kLongestPath);
  return WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, most, nullptr, nullptr) > 0;
}

// Says why with the system's words, in its language.
void* Refuse(const char* what) {
  const DWORD error = GetLastError();
  wchar_t wide[512] = L"";
  FormatMessageW(FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS, nullptr, error, 0,
                 wide, sizeof(wide) / sizeof(*wide), nullptr);
  char text[768] = "";
  ToUtf8(wide, text, sizeof(text));
  for (char* c = text; *c != '\0'; ++c) {
    if (*c == '\r' || *c == '\n') *c = '\0';
  }
  snprintf(why_no_library, sizeof(why_no_library), "%s: error %lu %s", what, error, text);
  return nullptr;
}

bool PathOfModule(HMODULE module, char* path, size_t size) {
  wchar_t wide[kLongestPath];
  const DWORD length = GetModuleFileNameW(module, wide, kLongestPath);
  if (length == 0 || length >= kLongestPath || !ToUtf8(wide, path, size)) return false;
  for (char* c = path; *c != '\0'; ++c) {
    if (*c == '\\') *c = '/';
  }
  return true;
}

}  // namespace

void* OpenLibrary(const char* path) {
  wchar_t wide[kLongestPath];
  if (!ToWide(path, wide)) return Refuse(path);
  const bool is_bare = strpbrk(path, "/\\:") == nullptr;
  if (is_bare) {
    HMODULE loaded = nullptr;
    if (GetModuleHandleExW(0, wide, &loaded) != 0) return reinterpret_cast<void*>(loaded);
  }
  for (wchar_t* c = wide; *c != L'\0'; ++c) {
    if (*c == L'/') *c = L'\\';
  }
  // Neither the current folder nor PATH; what a library needs may be beside it.
  DWORD where = LOAD_LIBRARY_SEARCH_DEFAULT_DIRS;
  if (IsAbsolute(path)) where |= LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR;
  HMODULE library = LoadLibraryExW(wide, nullptr, where);
  return library != nullptr ? reinterpret_cast<void*>(library) : Refuse(path);
}

void* FindSymbol(void* library, const char* name) {
  const FARPROC found = GetProcAddress(static_cast<HMODULE>(library), name);
  return found != nullptr ? reinterpret_cast<void*>(found) : Refuse(name);
}

const char* WhyNoLibrary() { return why_no_library; }

bool PathOfCode(const void* address, char* path, size_t size) {
  HMODULE module = nullptr;
  constexpr DWORD kHow =
      GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  return GetModuleHandleExW(kHow, static_cast<const wchar_t*>(address), &module) != 0 &&
         PathOfModule(module, path, size);
}

bool FindLoaded(bool (*is_it)(const char* path, void* context), void* context) {
  HMODULE modules[1024];
  DWORD bytes = 0;
  if (EnumProcessModules(GetCurrentProcess(), modules, sizeof(modules), &bytes) == 0) return false;
  const size_t known = sizeof(modules) / sizeof(*modules), loaded = bytes / sizeof(*modules);
  for (size_t i = 0; i < loaded && i < known; ++i) {
    char path[kLongestPath];
    if (PathOfModule(modules[i], path, sizeof(path)) && is_it(path, context)) return true;
  }
  return false;
}

bool IsAbsolute(const char* path) {
  const auto is_slash = [](char c) { return c == '/' || c == '\\'; };
  return (path[0] != '\0' && path[1] == ':' && is_slash(path[2])) ||
         (is_slash(path[0]) && is_slash(path[1]));
}

bool IsRegularFile(const char* path) {
  wchar_t wide[kLongestPath];
  if (!ToWide(path, wide)) return false;
  const DWORD attributes = GetFileAttributesW(wide);
  return attributes != INVALID_FILE_ATTRIBUTES &&
         (attributes & (FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_DEVICE)) == 0;
}

bool ReadEnvironment(const char* name, char* value, size_t size) {
  wchar_t wide_name[kLongestPath], wide[kLongestPath];
  if (!ToWide(name, wide_name)) return false;
  const DWORD length = GetEnvironmentVariableW(wide_name, wide, kLongestPath);
  return length > 0 && length < kLongestPath && ToUtf8(wide, value, size);
}

}  // namespace ort_aie::platform
