#include "targets/sim/xrt_standin/bo.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "targets/sim/xrt_standin/hw_context.h"

namespace xrt {
namespace {

using ort_aie::sim::kPage;
using ort_aie::sim::Throw;
using ort_aie::sim::ThrowIoctl;
using ort_aie::sim::Totals;

// The device's address for offset 0 of its memory.
constexpr uint64_t kDeviceBase = 0x1'0000'0000;

// Throws EFAULT unless the whole range is mapped. Returns whether all of it may be written.
bool CheckMapped(const void* user, size_t bytes) {
  uintptr_t at = reinterpret_cast<uintptr_t>(user);
  const uintptr_t end = at + bytes;
  bool writable = true;
  std::ifstream maps("/proc/self/maps");  // in the order of addresses
  for (std::string line; at < end && std::getline(maps, line);) {
    unsigned long low = 0;
    unsigned long high = 0;
    char access[5] = {};
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &low, &high, access) != 3) continue;
    if (high <= at) continue;
    if (low > at || access[0] != 'r') break;
    writable = writable && access[1] == 'w';
    at = high;
  }
  if (at < end) ThrowIoctl(EFAULT, "CREATE_BO");
  return writable;
}

// The driver supports only instruction buffers and shared ones, each in its bank.
void CheckKind(bo::flags flags, memory_group group) {
  switch (flags) {
    case bo::flags::cacheable:
      if ((group & 0xFFFF) != kInstructionBank) {
        Throw(EINVAL, "an instruction buffer needs the memory group of the kernel's argument 1");
      }
      break;
    case bo::flags::host_only:
      if ((group & 0xFFFF) != kHostBank) {
        Throw(EINVAL, "a data buffer needs the memory group of the kernel's argument 3 or later");
      }
      break;
    default:
      Throw(ENOTSUP,
            "unsupported buffer type: flags must be cacheable (instructions) or "
            "host_only (data)");
  }
  if ((group >> 24) != 0) Throw(EINVAL, "a memory group has 24 bits");
}

std::shared_ptr<bo_impl> Make(std::shared_ptr<xrt_core::device> device, void* user, size_t bytes,
                              bo::flags flags, memory_group group) {
  return std::make_shared<bo_impl>(std::move(device), user, bytes, flags, group);
}

}  // namespace

bo_impl::bo_impl(std::shared_ptr<xrt_core::device> npu, void* user, size_t bytes,
                 bo::flags bo_flags, memory_group bo_group)
    : device(std::move(npu)), size(bytes), flags(bo_flags), group(bo_group) {
  CheckKind(flags, group);
  if (user != nullptr) {
    if (instructions()) Throw(ENOTSUP, "user memory cannot hold instructions");
    if (reinterpret_cast<uintptr_t>(user) % kPage != 0 || bytes % kPage != 0 || bytes == 0) {
      Throw(EINVAL, "user memory must start at a multiple of 4096 and have whole pages");
    }
    writable_ = CheckMapped(user, bytes);
  }
  allocation_ = device->Allocate(bytes, instructions());
  if (user != nullptr) {
    host = static_cast<uint8_t*>(user);
    return;
  }
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) ThrowIoctl(ENOMEM, "CREATE_BO");
  host = static_cast<uint8_t*>(memory);
  owned_ = true;
  std::memset(host, ort_aie::sim::kPoison, size);
}

bo_impl::bo_impl(std::shared_ptr<bo_impl> parent, size_t bytes, size_t offset)
    : device(parent->device),
      size(bytes),
      flags(parent->flags),
      group(parent->group),
      parent_(std::move(parent)),
      offset_(offset),
      writable_(parent_->writable_) {
  if (bytes == 0 || offset > parent_->size || bytes > parent_->size - offset) {
    Throw(EINVAL, "Invalid offset or size when creating a sub-buffer");
  }
  host = parent_->host + offset;
}

bo_impl::~bo_impl() {
  if (owned_) munmap(host, size);
}

size_t bo_impl::device_offset() const {
  return parent_ ? parent_->device_offset() + offset_ : allocation_->offset();
}

uint8_t* bo_impl::device_bytes() const {
  return parent_ ? parent_->device_bytes() + offset_ : allocation_->data();
}

// On the NPU this is a flush of caches, which only the caller does, so it still works after a
// removal.
void bo_impl::Sync(xclBOSyncDirection direction, size_t bytes, size_t offset) {
  if (offset > size || bytes > size - offset) {
    Throw(EINVAL, "Invalid offset or size when syncing buffer");
  }
  uint8_t* const ours = host + offset;
  uint8_t* const theirs = device_bytes() + offset;
  switch (direction) {
    case XCL_BO_SYNC_BO_TO_DEVICE:
      std::memcpy(theirs, ours, bytes);
      break;
    case XCL_BO_SYNC_BO_FROM_DEVICE:
      if (writable_) {
        std::memcpy(ours, theirs, bytes);
      } else if (std::memcmp(ours, theirs, bytes) != 0) {
        Throw(EFAULT, "the device has written to memory that is mapped read-only");
      }
      break;
    default:
      Throw(ENOTSUP, "unsupported direction of a sync");
  }
  Totals::Get().bytes_synced += static_cast<int64_t>(bytes);
}

// --- xrt::bo -------------------------------------------------------------------------------------
bo::bo(const xrt::device& device, void* userptr, size_t sz, bo::flags flags, memory_group grp)
    : handle(Make(device.get_handle(), userptr, sz, flags, grp)) {}

bo::bo(const xrt::device& device, size_t sz, bo::flags flags, memory_group grp)
    : handle(Make(device.get_handle(), nullptr, sz, flags, grp)) {}

bo::bo(const xrt::device& device, size_t sz, memory_group grp)
    : bo(device, sz, flags::normal, grp) {}

bo::bo(const bo& parent, size_t size, size_t offset)
    : handle(std::make_shared<bo_impl>(parent.handle, size, offset)) {}

bo::~bo() = default;

size_t bo::size() const { return handle->size; }

uint64_t bo::address() const { return kDeviceBase + handle->device_offset(); }

void bo::sync(xclBOSyncDirection dir, size_t sz, size_t offset) { handle->Sync(dir, sz, offset); }

void* bo::map() { return handle->host; }

const void* bo::map() const { return handle->host; }

void bo::write(const void* src, size_t size, size_t seek) {
  if (seek > handle->size || size > handle->size - seek) {
    Throw(EINVAL, "Invalid offset or size when writing to a buffer");
  }
  std::memcpy(handle->host + seek, src, size);
}

void bo::read(void* dst, size_t size, size_t skip) {
  if (skip > handle->size || size > handle->size - skip) {
    Throw(EINVAL, "Invalid offset or size when reading from a buffer");
  }
  std::memcpy(dst, handle->host + skip, size);
}

}  // namespace xrt
