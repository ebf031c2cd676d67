// The content of a buffer of the stand-in: the host's bytes, and the device's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "targets/sim/xrt_standin/npu.h"
#include "xrt/xrt_bo.h"

namespace xrt {

// Bits of a memory group: the low ones are the bank, the high ones the slot of a hardware context.
inline constexpr uint32_t kHostBank = 0;
inline constexpr uint32_t kInstructionBank = 1;
inline constexpr uint32_t MemoryGroup(uint8_t slot, uint32_t bank) {
  return static_cast<uint32_t>(slot) << 16 | bank;
}

class bo_impl {
 public:
  // `user` may be null; then the buffer owns the host's bytes.
  bo_impl(std::shared_ptr<xrt_core::device> device, void* user, size_t bytes, bo::flags flags,
          memory_group group);
  bo_impl(std::shared_ptr<bo_impl> parent, size_t bytes, size_t offset);
  ~bo_impl();
  bo_impl(const bo_impl&) = delete;
  bo_impl& operator=(const bo_impl&) = delete;

  bool instructions() const { return flags == bo::flags::cacheable; }
  size_t device_offset() const;
  // What the driver finds by the buffer's handle, for parts and the whole alike.
  const std::shared_ptr<ort_aie::sim::Allocation>& memory() const {
    return parent_ ? parent_->memory() : allocation_;
  }
  void Sync(xclBOSyncDirection direction, size_t bytes, size_t offset);

  const std::shared_ptr<xrt_core::device> device;
  const size_t size;
  const bo::flags flags;
  const memory_group group;

 private:
  uint8_t* device_bytes() const;

  std::shared_ptr<bo_impl> parent_;
  size_t offset_ = 0;  // in the parent
  std::shared_ptr<ort_aie::sim::Allocation> allocation_;
  bool owned_ = false;
  bool writable_ = true;

 public:
  uint8_t* host = nullptr;
};

}  // namespace xrt
