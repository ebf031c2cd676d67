// What the library needs of the operating system: files, maps of them, locks, and facts about the
// process and the machine. Everything that differs between systems is behind this header and
// libraries.h: in platform_posix.cc and libraries_posix.cc, or in those that end with _windows.cc.
//
// Paths are UTF-8. A function that fails sets errno, on Windows too.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"

namespace ort_aie::platform {

#if defined(_WIN32)
inline constexpr bool kHasNpuTargets = false;
inline constexpr bool kReplacesOpenFiles = false;
// A drive's colon also ends a folder, and no file's name has one.
inline constexpr std::string_view kSeparators = "/\\:";
#else
inline constexpr bool kHasNpuTargets = true;
inline constexpr bool kReplacesOpenFiles = true;
inline constexpr std::string_view kSeparators = "/";
#endif

// --- names ---------------------------------------------------------------------------------------

// For std::filesystem and streams.
std::filesystem::path PathOf(std::string_view text);
// Also of ONNX Runtime's paths, whose characters are the system's.
std::string TextOf(const std::filesystem::path& path);

// The value of a variable, or nothing.
std::string Environment(const char* name);
// The same, but nothing if the process has more rights than the user who set the variable.
std::string TrustedEnvironment(const char* name);

// The folder in which this user's programs keep what they can make again, or nothing:
// $XDG_CACHE_HOME or ~/.cache; on Windows %LOCALAPPDATA%.
std::string CacheFolder();

// --- files ---------------------------------------------------------------------------------------

class File {
 public:
  File() = default;  // not open
  // To read, without waiting if it is a FIFO. Other processes may replace it meanwhile.
  static File Open(const std::string& path);
  // To write; fails if it exists.
  static File Create(const std::string& path);
  // To write, read and map, in a folder; it is gone when nothing uses it any more.
  static File CreateTemporary(const std::string& folder);

  ~File() { Close(); }
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  bool is_open() const { return handle_ != kNone; }
  void Close();

  // -1 if it is not a regular file.
  int64_t Bytes() const;
  bool Write(int64_t offset, const void* data, size_t bytes);
  // How many bytes were read, fewer at the end of the file; -1 on failure.
  int64_t Read(int64_t offset, void* data, size_t bytes) const;
  // Whether all that was written has been taken: some file systems say later that it was not.
  bool Settle();
  // Writes to the disk and forgets the cached pages, where the system has a way to do that.
  void LeaveCache();
  // Bytes of a regular file, read-only, for as long as the pointer is held; null on failure.
  // `bytes` is not 0. Where the system caches the file in large pages, it can map them as such.
  std::shared_ptr<const uint8_t> Map(int64_t offset, int64_t bytes) const;

  struct Identity {
    uint64_t device = 0, inode = 0;
    int64_t bytes = -1, changed_ns = 0;
    auto operator<=>(const Identity&) const = default;
  };
  // Equal only for a file that has not changed; File::Identity{} where the system does not tell.
  Identity Id() const;

  struct Cached {
    int64_t bytes = 0, in_large_pages = 0;
  };
  // How much of the file the system caches, in whole large pages; nothing if that is not known.
  std::optional<Cached> CachedBytes() const;
  // Makes the system cache in large pages what it caches in small ones, by reading it again. Takes
  // about a second at most, and leaves the rest as it is; stops where nothing is gained. Does
  // nothing for a file of another user, or one that is open for writing.
  void CacheInLargePages() const;

  // Locks the file against others' Lock until this object is closed. False only if another holds
  // it: not every file system has locks.
  bool Lock();
  // Whether a path still names this file.
  bool IsAt(const std::string& path) const;

 private:
  static constexpr intptr_t kNone = -1;
  explicit File(intptr_t handle) : handle_(handle) {}

  intptr_t handle_ = kNone;
};

// A part of a file that is mapped into this process.
struct MappedFile {
  uintptr_t begin = 0, end = 0;
  int64_t offset = 0;  // of `begin`
  uint64_t device = 0, inode = 0;
  std::string path;  // may name another file by now
};
// By address; none where the system does not tell.
std::vector<MappedFile> MappedFiles();
// Whether this process has written to its private mapping of a file, so that the file has other
// bytes. True where the system does not tell.
bool MayHaveChanged(const void* mapped, size_t bytes);

bool Exists(const std::string& path);
void Remove(const std::string& path);
// Gives a file another name. The first replaces what has that name; the second fails then, with
// EEXIST.
bool Replace(const std::string& from, const std::string& to);
bool RenameToNew(const std::string& from, const std::string& to);

// --- process and machine -------------------------------------------------------------------------

// A pointer for each thread, which `free` gets when the thread ends. Without memory for the
// pointer, Set returns false, where thread_local would end the process. A slot is never destroyed:
// threads may outlive the statics of the process, and the library stays loaded for them.
class ThreadSlot {
 public:
  explicit ThreadSlot(void (*free)(void*));
  void* Get() const;
  // False if there is no memory for it.
  bool Set(void* pointer) const;

 private:
  uintptr_t key_ = 0;
  bool exists_ = false;
};

// While it lives, this thread's numbers as text have a point, whatever the locale of the process:
// for libraries that read numbers by the C library.
class PointInNumbers {
 public:
  PointInNumbers();
  ~PointInNumbers();
  PointInNumbers(const PointInNumbers&) = delete;
  PointInNumbers& operator=(const PointInNumbers&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

int ProcessId();
int ThreadId();  // the system's

// Bytes of the last level of cache; 0 if the system does not say.
int64_t LastCacheBytes();

// Asks for large pages, which need fewer address translations; it may have no effect.
void PreferLargePages(void* data, size_t bytes);
inline constexpr size_t kLargePage = 2 << 20;
// Memory at `alignment` at least; in large pages, if possible, where it fills one. Throws
// std::bad_alloc.
inline AlignedMemory AllocateInLargePages(size_t bytes, size_t alignment) {
  const bool large = bytes >= kLargePage;
  AlignedMemory memory = AllocateAligned(bytes, large ? kLargePage : alignment);
  if (large) PreferLargePages(memory.get(), bytes);
  return memory;
}

// Asks the system to let this process use AMX's tiles. Returns why not, or nothing.
std::string AskForTiles();

}  // namespace ort_aie::platform
