#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/platform.h"

namespace ort_aie::platform {
namespace {

// What a system call returns that is repeated while a signal interrupts it.
template <typename Call>
auto Retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

std::filesystem::path PathOf(std::string_view text) { return text; }

std::string TextOf(const std::filesystem::path& path) { return path.native(); }

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string TrustedEnvironment(const char* name) {
  const char* value = secure_getenv(name);
  return value != nullptr ? value : "";
}

std::string CacheFolder() {
  // The specification says to ignore a path that is not absolute.
  if (std::string shared = Environment("XDG_CACHE_HOME"); shared.starts_with('/')) return shared;
  const std::string home = Environment("HOME");
  return home.empty() ? "" : home + "/.cache";
}

File File::Open(const std::string& path) {
  // Without O_NONBLOCK, opening a FIFO waits for a writer.
  return File(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

File File::Create(const std::string& path) {
  return File(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
}

File File::CreateTemporary(const std::string& folder) {
  std::string name = folder + "/.ort_aie-XXXXXX";
  File file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.is_open()) ::unlink(name.c_str());
  return file;
}

File::File(File&& other) noexcept : handle_(std::exchange(other.handle_, kNone)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

void File::Close() {
  if (is_open()) ::close(static_cast<int>(std::exchange(handle_, kNone)));
}

int64_t File::Bytes() const {
  struct stat status{};
  const bool known = ::fstat(static_cast<int>(handle_), &status) == 0;
  return known && S_ISREG(status.st_mode) ? status.st_size : -1;
}

bool File::Write(int64_t offset, const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    const ssize_t count =
        Retry([&] { return ::pwrite(static_cast<int>(handle_), from, bytes, offset); });
    if (count < 0) return false;
    from += count;
    bytes -= static_cast<size_t>(count);
    offset += count;
  }
  return true;
}

int64_t File::Read(int64_t offset, void* data, size_t bytes) const {
  auto* to = static_cast<uint8_t*>(data);
  int64_t done = 0;
  while (bytes > 0) {
    const ssize_t count =
        Retry([&] { return ::pread(static_cast<int>(handle_), to + done, bytes, offset + done); });
    if (count < 0) return -1;
    if (count == 0) break;
    done += count;
    bytes -= static_cast<size_t>(count);
  }
  return done;
}

bool File::Settle() {
  // What close() reports is reported for a duplicate too, and this one stays open with its lock.
  const int copy = ::fcntl(static_cast<int>(handle_), F_DUPFD_CLOEXEC, 0);
  return copy >= 0 && ::close(copy) == 0;
}

void File::LeaveCache() {
  ::fsync(static_cast<int>(handle_));
  ::posix_fadvise(static_cast<int>(handle_), 0, 0, POSIX_FADV_DONTNEED);
}

std::shared_ptr<const uint8_t> File::Map(int64_t offset, int64_t bytes) const {
  const int64_t within = offset % ::sysconf(_SC_PAGESIZE);
  const auto size = static_cast<size_t>(within + bytes);
  // The system caches parts of a file that start at multiples of a large page. It can map them as
  // such only at addresses that start there, too.
  const size_t room = size < kLargePage ? 0 : kLargePage;
  void* reserved =
      ::mmap(nullptr, size + room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const std::shared_ptr<const void> owner(
      reserved, [all = size + room](const void* its) { ::munmap(const_cast<void*>(its), all); });
  auto* map = static_cast<uint8_t*>(reserved);
  if (room > 0) {
    map += (static_cast<size_t>(offset - within) - reinterpret_cast<uintptr_t>(map)) % kLargePage;
  }
  if (::mmap(map, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, static_cast<int>(handle_),
             offset - within) == MAP_FAILED) {
    return nullptr;
  }
  if (room > 0) PreferLargePages(map, size);  // what is not cached yet is read in large pages then
  return {owner, map + within};
}

bool File::Lock() {
  return ::flock(static_cast<int>(handle_), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

bool File::IsAt(const std::string& path) const {
  struct stat open{}, named{};
  return ::fstat(static_cast<int>(handle_), &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

bool Exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

void Remove(const std::string& path) { ::unlink(path.c_str()); }

bool Replace(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str()) == 0;
}

bool RenameToNew(const std::string& from, const std::string& to) {
  // Unlike renaming, linking fails if there is such a file.
  if (::link(from.c_str(), to.c_str()) != 0) return false;
  ::unlink(from.c_str());
  return true;
}

static_assert(sizeof(pthread_key_t) <= sizeof(uintptr_t));

ThreadSlot::ThreadSlot(void (*free)(void*)) {
  pthread_key_t key = 0;
  exists_ = pthread_key_create(&key, free) == 0;
  key_ = key;
}

void* ThreadSlot::Get() const {
  return exists_ ? pthread_getspecific(static_cast<pthread_key_t>(key_)) : nullptr;
}

bool ThreadSlot::Set(void* pointer) const {
  return exists_ && pthread_setspecific(static_cast<pthread_key_t>(key_), pointer) == 0;
}

struct PointInNumbers::Before {
  locale_t numbers = newlocale(LC_NUMERIC_MASK, "C", locale_t());
  locale_t used = uselocale(numbers);
};

PointInNumbers::PointInNumbers() : before_(std::make_unique<Before>()) {}

PointInNumbers::~PointInNumbers() {
  uselocale(before_->used);
  if (before_->numbers != locale_t()) freelocale(before_->numbers);
}

int ProcessId() { return ::getpid(); }

int ThreadId() { return static_cast<int>(::syscall(SYS_gettid)); }

int64_t LastCacheBytes() { return std::max(0L, ::sysconf(_SC_LEVEL3_CACHE_SIZE)); }

std::string AskForTiles() {
#if defined(__x86_64__) && defined(__linux__)
  // The permission is for the process: for its existing threads and for new ones.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // asm/prctl.h, since Linux 5.16
  if (::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return "";
  const char* what = errno == ENOSPC ? "the signal stack of a thread is too small for their state"
                                     : std::strerror(errno);
  return std::string("Linux refuses tiles to this process: arch_prctl(ARCH_REQ_XCOMP_PERM): ") +
         what;
#else
  return "this library uses AMX only on Linux";
#endif
}

}  // namespace ort_aie::platform
