// How Linux caches files: in pages of 4 KB, or of 2 MB where kernel and file system can.
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <utility>

#include "base/platform.h"

namespace ort_aie::platform {
namespace {

constexpr auto kLarge = static_cast<int64_t>(kLargePage);

// As Linux's headers have them: those with which releases are built are older.
constexpr int kPopulateRead = 22;  // for madvise; <asm-generic/mman-common.h>, since 5.14
struct PageRegion {                // <linux/fs.h>, since 6.7
  uint64_t start, end, categories;
};
struct PageScan {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kScanPages = _IOWR('f', 16, PageScan);
constexpr uint64_t kIsHuge = 1 << 6;

// The parts of a file that can be large pages, mapped to see how they are cached. Without any, if
// that cannot be seen.
class Parts {
 public:
  Parts(const File& file, int handle)
      : handle_(handle), pages_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) {
    struct stat status{};
    // mincore tells nothing about a file of another user.
    const bool ours = ::fstat(handle, &status) == 0 && S_ISREG(status.st_mode) &&
                      (status.st_uid == ::geteuid() || ::geteuid() == 0);
    if (!ours || status.st_size < kLarge) return;
    map_ = file.Map(0, status.st_size / kLarge * kLarge);
    PageRegion unused{};
    if (map_ != nullptr && Scan(0, unused) >= 0) count_ = status.st_size / kLarge;
  }
  ~Parts() {
    if (pages_ >= 0) ::close(pages_);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  int64_t count() const { return count_; }
  // Looks at the first and the last page: whoever read from either end has left one of them.
  bool IsCached(int64_t part) const {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    unsigned char first = 0, last = 0;
    ::mincore(At(part), page, &first);
    ::mincore(At(part) + kLargePage - page, page, &last);
    return ((first | last) & 1) != 0;
  }
  // Maps the part; reads it if it is not cached.
  bool IsLarge(int64_t part) const {
    ::madvise(At(part), 1, kPopulateRead);  // unlike a load, reports a bad disk without a signal
    PageRegion region{};
    return Scan(part, region) == 1 && region.end - region.start == kLargePage;
  }
  void Unmap(int64_t first, int64_t end) const {
    ::madvise(At(first), static_cast<size_t>((end - first) * kLarge), MADV_DONTNEED);
  }
  // The system keeps pages that another mapping holds.
  void DropFromCache(int64_t part) const {
    Unmap(part, part + 1);
    ::sync_file_range(
        handle_, part * kLarge, kLarge,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    ::posix_fadvise(handle_, part * kLarge, kLarge, POSIX_FADV_DONTNEED);
  }

 private:
  uint8_t* At(int64_t part) const { return const_cast<uint8_t*>(map_.get()) + part * kLarge; }
  // Finds the first large page in a part. Returns how many were found, negative on failure.
  int Scan(int64_t part, PageRegion& found) const {
    PageScan scan{};
    scan.size = sizeof(scan);
    scan.start = reinterpret_cast<uintptr_t>(At(part));
    scan.end = scan.start + kLargePage;
    scan.vec = reinterpret_cast<uintptr_t>(&found);
    scan.vec_len = 1;
    scan.category_mask = scan.return_mask = kIsHuge;
    return ::ioctl(pages_, kScanPages, &scan);
  }

  int handle_, pages_;
  int64_t count_ = 0;
  std::shared_ptr<const uint8_t> map_;
};

// Only the file's owner, or root, can ask: true for others.
bool IsOpenForWriting(int handle) {
  // A file that is open for writing gets no lease. Opening it for writing later waits for the end
  // of the lease, and this process gets a signal: SIGURG, which it ignores, because the usual SIGIO
  // would end it.
  ::fcntl(handle, F_SETSIG, SIGURG);
  if (::fcntl(handle, F_SETLEASE, F_RDLCK) != 0) return true;
  ::fcntl(handle, F_SETLEASE, F_UNLCK);
  return false;
}

}  // namespace

void PreferLargePages(void* data, size_t bytes) { ::madvise(data, bytes, MADV_HUGEPAGE); }

std::optional<File::Cached> File::CachedBytes() const {
  const Parts parts(*this, static_cast<int>(handle_));
  if (parts.count() == 0) return std::nullopt;
  Cached cached;
  for (int64_t part = 0; part < parts.count(); ++part) {
    if (!parts.IsCached(part)) continue;
    cached.bytes += kLarge;
    if (parts.IsLarge(part)) cached.in_large_pages += kLarge;
  }
  return cached;
}

void File::CacheInLargePages() const {
  constexpr auto kLongest = std::chrono::seconds(1);
  constexpr int64_t kMostAtOnce = 16;   // parts: a disk reads ahead while these are taken
  constexpr int64_t kMostFailures = 4;  // parts that other mappings hold
  if (IsOpenForWriting(static_cast<int>(handle_))) return;
  const Parts parts(*this, static_cast<int>(handle_));
  const auto start = std::chrono::steady_clock::now();
  int64_t failures = 0, at_once = 1;  // few parts at first: where nothing is gained, little is read
  for (int64_t first = 0; first < parts.count();) {
    std::vector<int64_t> small;
    const int64_t end = std::min(first + at_once, parts.count());
    for (int64_t part = first; part < end; ++part) {
      if (parts.IsCached(part) && !parts.IsLarge(part)) small.push_back(part);
    }
    for (const int64_t part : small) parts.DropFromCache(part);
    for (const int64_t part : small) failures += parts.IsLarge(part) ? -1 : 1;
    // Mapped pages count as this process's memory, though nobody uses them yet.
    parts.Unmap(first, end);
    if (failures > kMostFailures || std::chrono::steady_clock::now() - start > kLongest) return;
    first = end;
    at_once = std::min(2 * at_once, kMostAtOnce);
  }
}

File::Identity File::Id() const {
  struct stat status{};
  if (::fstat(static_cast<int>(handle_), &status) != 0) return {};
  return {status.st_dev, status.st_ino, status.st_size,
          status.st_ctim.tv_sec * int64_t{1'000'000'000} + status.st_ctim.tv_nsec};
}

std::vector<MappedFile> MappedFiles() {
  std::vector<MappedFile> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    MappedFile file;
    uint64_t offset = 0;
    unsigned major = 0, minor = 0;
    int path = 0;
    const int read =
        std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %*4c %" SCNx64 " %x:%x %" SCNu64 " %n",
                    &file.begin, &file.end, &offset, &major, &minor, &file.inode, &path);
    if (read != 6 || file.inode == 0) continue;
    file.offset = static_cast<int64_t>(offset);
    file.device = makedev(major, minor);
    file.path = line.substr(static_cast<size_t>(path));
    files.push_back(std::move(file));
  }
  return files;
}

bool MayHaveChanged(const void* mapped, size_t bytes) {
  // A written page is not the file's any more. The kernel's documentation has the bits
  // (admin-guide/mm/pagemap.rst).
  constexpr uint64_t kIsPresent = uint64_t{1} << 63, kIsSwapped = uint64_t{1} << 62;
  constexpr uint64_t kIsOfFile = uint64_t{1} << 61;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(mapped);
  const File pages = File::Open("/proc/self/pagemap");
  std::vector<uint64_t> entries(4096);
  const uintptr_t end = (address + bytes - 1) / page + 1;
  for (uintptr_t at = address / page; at < end; at += entries.size()) {
    const size_t size = std::min<size_t>(entries.size(), end - at) * sizeof(uint64_t);
    const auto offset = static_cast<int64_t>(at * sizeof(uint64_t));
    if (std::cmp_not_equal(pages.Read(offset, entries.data(), size), size)) return true;
    const auto changed = [](uint64_t entry) {
      return (entry & (kIsPresent | kIsSwapped)) != 0 && (entry & kIsOfFile) == 0;
    };
    const auto last = entries.begin() + static_cast<ptrdiff_t>(size / sizeof(uint64_t));
    if (std::any_of(entries.begin(), last, changed)) return true;
  }
  return false;
}

}  // namespace ort_aie::platform
