#include "targets/npu/xrt/mappings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <utility>
#include <vector>

namespace ort_aie::npu_target {
namespace {

uintptr_t AddressOf(const void* data) { return reinterpret_cast<uintptr_t>(data); }

// 7f0c1a000000-7f0c1a021000 r--p 00001000 fd:01 1234   /path
std::optional<Mapping> ParseMapping(const std::string& line) {
  Mapping mapping{};
  char permissions[5] = "", device[32] = "";
  int path = 0;
  const int fields = std::sscanf(
      line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %31s %" SCNu64 " %n", &mapping.begin,
      &mapping.end, permissions, &mapping.offset, device, &mapping.inode, &path);
  if (fields != 6) return std::nullopt;
  mapping.writable = permissions[1] == 'w';
  mapping.shared = permissions[3] == 's';
  mapping.device = device;
  mapping.path = line.substr(static_cast<size_t>(path));
  return mapping;
}

bool Holds(const Mapping& mapping, uintptr_t begin, size_t bytes) {
  return mapping.begin <= begin && begin < mapping.end && bytes <= mapping.end - begin;
}

// Whether all pages from `begin` on, in a private mapping, are still those of the file, so that no
// write has copied one. /proc/self/pagemap has a word for each page.
bool IsUnwritten(uintptr_t begin, size_t pages) {
  constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62,
                     kOfFile = uint64_t{1} << 61;
  // Not a stream, because that reads other sizes, and the kernel returns only whole words.
  const int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap < 0) return false;
  std::vector<uint64_t> entries(pages);
  const size_t size = pages * sizeof(uint64_t);
  const ssize_t got = pread(pagemap, entries.data(), size,
                            static_cast<off_t>(begin / kPageBytes * sizeof(uint64_t)));
  close(pagemap);
  return got == static_cast<ssize_t>(size) && std::ranges::none_of(entries, [](uint64_t entry) {
           return (entry & kSwapped) != 0 || (entry & (kPresent | kOfFile)) == kPresent;
         });
}

}  // namespace

std::optional<Mapping> FindMapping(const void* data, size_t bytes) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::optional<Mapping> mapping = ParseMapping(line);
    if (mapping && Holds(*mapping, AddressOf(data), bytes)) return mapping;
  }
  return std::nullopt;
}

std::optional<FileRange> FileRangeAt(const void* data, size_t bytes) {
  if (AddressOf(data) % kPageBytes != 0 || bytes == 0) return std::nullopt;
  const std::optional<Mapping> theirs = FindMapping(data, bytes);
  if (!theirs || theirs->inode == 0) return std::nullopt;
  if (!theirs->shared && !IsUnwritten(AddressOf(data), WholePages(bytes) / kPageBytes)) {
    return std::nullopt;
  }
  return FileRange{theirs->device, theirs->inode, theirs->path,
                   theirs->offset + (AddressOf(data) - theirs->begin), bytes};
}

std::optional<FilePages> FilePages::Of(const FileRange& range) {
  const size_t size = WholePages(range.bytes);
  const int file = open(range.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  void* pages = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, static_cast<off_t>(range.offset));
  close(file);
  if (pages == MAP_FAILED) return std::nullopt;
  FilePages view(static_cast<uint8_t*>(pages), size);
  // Another file may have this path by now. The kernel tells for both mappings which file it is;
  // stat would tell it in the terms of the file system, which differ for btrfs and overlayfs.
  const std::optional<Mapping> ours = FindMapping(pages, size);
  if (!ours || ours->inode != range.inode || ours->device != range.device) return std::nullopt;
  return view;
}

FilePages::FilePages(FilePages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}

FilePages::~FilePages() {
  if (data_ != nullptr) munmap(data_, size_);
}

bool DropFilePages(const void* data, size_t bytes) {
  const uintptr_t first = (AddressOf(data) + kPageBytes - 1) / kPageBytes * kPageBytes;
  const uintptr_t last = (AddressOf(data) + bytes) / kPageBytes * kPageBytes;
  if (last <= first) return false;
  const std::optional<Mapping> mapping = FindMapping(data, bytes);
  if (!mapping || mapping->inode == 0 || mapping->shared) return false;
  if (!IsUnwritten(first, (last - first) / kPageBytes)) return false;
  return madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) == 0;
}

}  // namespace ort_aie::npu_target
