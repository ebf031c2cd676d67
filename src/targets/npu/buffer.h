// Memory that the host and a device share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ort_aie::npu_target {

// They see the same bytes only after a transfer.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual uint8_t* host() = 0;  // a pinned buffer is read-only
  virtual size_t size() const = 0;
  virtual void ToDevice(size_t offset, size_t bytes) = 0;
  virtual void FromDevice(size_t offset, size_t bytes) = 0;
};

// A place on the device.
struct DeviceMemory {
  std::shared_ptr<Buffer> buffer;
  int64_t offset = 0;

  uint8_t* host() const { return buffer->host() + offset; }
};

// A stream addresses the bytes of a buffer with 32 bits.
inline constexpr size_t kMaxBufferBytes = size_t{1} << 32;

constexpr int64_t RoundUp(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

}  // namespace ort_aie::npu_target
