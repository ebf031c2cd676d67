#include "targets/sim/xrt_standin/heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

namespace ort_aie::sim {
namespace {

// Only address space: pages exist from the first write until they are freed.
constexpr size_t kBytes = size_t{64} << 30;

}  // namespace

Heap::Heap() : free_{{0, kBytes}} {
  const int file = memfd_create("ort_aie_sim", MFD_CLOEXEC);
  // Above the descriptors that the child uses.
  file_ = file < 0 ? -1 : fcntl(file, F_DUPFD_CLOEXEC, 16);
  if (file >= 0) close(file);
  if (file_ < 0 || ftruncate(file_, kBytes) != 0) {
    const int error = errno;
    if (file_ >= 0) close(file_);
    throw std::system_error(error, std::generic_category(), "memory of the modelled NPU");
  }
  void* const base =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (base == MAP_FAILED) {
    const int error = errno;
    close(file_);
    throw std::system_error(error, std::generic_category(), "memory of the modelled NPU");
  }
  base_ = static_cast<uint8_t*>(base);
}

Heap::~Heap() {
  munmap(base_, kBytes);
  close(file_);
}

size_t Heap::Allocate(size_t bytes) {
  bytes = RoundUp(bytes, kPage);
  size_t offset;
  {
    const std::lock_guard lock(mutex_);
    auto block = free_.begin();
    while (block != free_.end() && block->second < bytes) ++block;
    if (block == free_.end()) throw std::bad_alloc();
    offset = block->first;
    if (block->second > bytes) free_.emplace(offset + bytes, block->second - bytes);
    free_.erase(block);
  }
  std::memset(at(offset), kPoison, bytes);
  return offset;
}

void Heap::Free(size_t offset, size_t bytes) {
  bytes = RoundUp(bytes, kPage);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
  const std::lock_guard lock(mutex_);
  const auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto previous = std::prev(after);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_.emplace(offset, bytes);
}

}  // namespace ort_aie::sim
