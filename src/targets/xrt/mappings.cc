#include "targets/xrt/mappings.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string_view>
#include <utility>

namespace ort_aie::xrt {
namespace {

uintptr_t AddressOf(const void* data) { return reinterpret_cast<uintptr_t>(data); }

size_t WholePages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

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

// Whether a private mapping is what the file has: smaps counts pages of its own as Anonymous, and
// those that were swapped out as Swap.
bool IsUnwritten(const Mapping& mapping) {
  std::ifstream smaps("/proc/self/smaps");
  bool here = false, unwritten = false;
  for (std::string line; std::getline(smaps, line);) {
    if (const std::optional<Mapping> next = ParseMapping(line)) {
      if (here) break;
      here = next->begin == mapping.begin && next->end == mapping.end;
      unwritten = here;
      continue;
    }
    if (!here || (!line.starts_with("Anonymous:") && !line.starts_with("Swap:"))) continue;
    long kilobytes = -1;
    std::sscanf(line.c_str() + line.find(':') + 1, "%ld", &kilobytes);
    unwritten = unwritten && kilobytes == 0;
  }
  return unwritten;
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

std::optional<FilePages> FilePages::Behind(const void* data, size_t bytes) {
  if (AddressOf(data) % kPageBytes != 0 || bytes == 0) return std::nullopt;
  const std::optional<Mapping> theirs = FindMapping(data, bytes);
  if (!theirs || theirs->inode == 0) return std::nullopt;
  const int file = open(theirs->path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  const uint64_t offset = theirs->offset + (AddressOf(data) - theirs->begin);
  const size_t size = WholePages(bytes);
  void* pages = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, static_cast<off_t>(offset));
  close(file);
  if (pages == MAP_FAILED) return std::nullopt;
  FilePages view(static_cast<uint8_t*>(pages), size);
  // Another file may lie under that path by now. The kernel says of both mappings which file it is:
  // stat would say it in the terms of the file system, which differ for btrfs and overlayfs.
  const std::optional<Mapping> ours = FindMapping(pages, size);
  if (!ours || ours->inode != theirs->inode || ours->device != theirs->device) return std::nullopt;
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
  if (!mapping || mapping->inode == 0 || mapping->shared || !IsUnwritten(*mapping)) return false;
  return madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) == 0;
}

}  // namespace ort_aie::xrt
