// Shared libraries on each operating system: loading them, finding where they are, exporting from
// them. The stub uses this too and is a few kilobytes, so nothing here needs the C++ library.
// Paths are UTF-8, with '/' between folders.
#pragma once

#include <stddef.h>

#if defined(_WIN32)
#define ORT_AIE_EXPORT extern "C" __declspec(dllexport)
#define ORT_AIE_LIBRARY_NAME(name) name ".dll"
#else
#define ORT_AIE_EXPORT extern "C" __attribute__((visibility("default")))
#define ORT_AIE_LIBRARY_NAME(name) "lib" name ".so"
#endif

namespace ort_aie::platform {

// A library for the life of the process; null if it cannot be loaded. A bare name is one that is
// loaded already, or is found where the system searches.
void* OpenLibrary(const char* path);
void* FindSymbol(void* library, const char* name);
// Why the last of these calls on this thread returned null.
const char* WhyNoLibrary();

// The file of the library or program that has the code at `address`. False if it is not known, or
// not shorter than `size`.
bool PathOfCode(const void* address, char* path, size_t size);

// Calls `is_it` for the path of each loaded library until one returns true. Returns whether one
// did. No library can be loaded meanwhile.
bool FindLoaded(bool (*is_it)(const char* path, void* context), void* context);

bool IsAbsolute(const char* path);
bool IsRegularFile(const char* path);

// The value of a variable of the environment. False if it is not set, empty, or not shorter than
// `size`.
bool ReadEnvironment(const char* name, char* value, size_t size);

}  // namespace ort_aie::platform
