// An NPU as the executor sees it: buffers, overlays, runs. `xrt/xrt_device.cc` has it over XRT;
// nothing outside of that folder includes XRT's headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "npu/interpreter.h"
#include "npu/manifest.h"

namespace ort_aie::npu_target {

enum class Fault {
  kNoDevice,        // none, or the driver does not answer
  kNoOverlay,       // no package for what is asked
  kWrongOverlay,    // a package of another device, version or content
  kContextRefused,  // all columns are busy
  kAllocation,
  kTimeout,
  kRunError,
  kDeviceLost,
};

// What went wrong with the device, as opposed to with the model; the text is for people.
class DeviceError : public std::runtime_error {
 public:
  DeviceError(Fault fault, const std::string& text) : std::runtime_error(text), fault_(fault) {}
  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};

// Memory that the host and the device see. They see the same bytes only after a transfer.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual uint8_t* host() = 0;  // a pinned buffer is read-only
  virtual size_t size() const = 0;
  virtual void ToDevice(size_t offset, size_t bytes) = 0;
  virtual void FromDevice(size_t offset, size_t bytes) = 0;
};

// Where something lies on the device.
struct DeviceMemory {
  std::shared_ptr<Buffer> buffer;
  int64_t offset = 0;

  uint8_t* host() const { return buffer->host() + offset; }
};

// Memory of the host.
struct HostMemory {
  const void* data;
  size_t bytes;
};

// A stream names bytes of a buffer by 32 bits.
inline constexpr size_t kMaxBufferBytes = size_t{1} << 32;

// What a process has asked of the device since it opened it.
struct Counters {
  int64_t runs = 0;          // instruction streams executed
  int64_t submissions = 0;   // of one or a list of them, each with a wait
  int64_t bytes_to = 0;      // copied or flushed to the device
  int64_t bytes_from = 0;    // and back
  int64_t streams_kept = 0;  // instruction streams reused or patched
  int64_t streams_built = 0;
  int64_t streams_dropped = 0;  // to make room for others
  int64_t stream_bytes = 0;     // of the device's memory for instructions, now
  int64_t retries = 0;          // plans that were run again in a fresh context
  int64_t fallbacks = 0;        // plans that the host executed after a fault
  int64_t buffers = 0;          // alive now
  int64_t buffer_bytes = 0;
};

// An overlay that others built, which has a stream of words of its own.
struct OtherOverlay {
  std::string path;    // of the xclbin
  std::string uuid;    // that its header has
  std::string kernel;  // its name
  std::string device;  // that it is for, as manifests have it
  size_t buffers;      // that it takes as arguments
};

class OtherStream {
 public:
  virtual ~OtherStream() = default;
  virtual std::span<uint32_t> words() = 0;
  // Executes the words on the kernel's buffers, in order, and waits for the end. Of the words,
  // [begin, end) may have changed since the last run. Throws DeviceError; then what the buffers
  // hold on the device is unknown, and the stream is of no use any more.
  virtual void Run(size_t begin, size_t end, std::span<Buffer* const> buffers) = 0;
};

// One device of the process, for all sessions and threads. Every wait in it is bounded.
class Device {
 public:
  virtual ~Device() = default;

  virtual const std::string& name() const = 0;  // as XRT has it, such as "NPU Strix"

  // The manifest of design `design` for this device, or null if there is no package.
  virtual const npu::Manifest* Overlay(std::string_view design) = 0;

  virtual std::shared_ptr<Buffer> Allocate(size_t bytes) = 0;

  // Ranges that stay as they are for as long as their buffers live: pinned in place, from a
  // read-only mapping of the same file where that is possible, else copied once. Already on the
  // device. What lies in one file, or close together in memory, shares a buffer of at most
  // kMaxBufferBytes, for a run has few buffers.
  virtual std::vector<DeviceMemory> Pin(std::span<const HostMemory> ranges) = 0;

  // Executes `plan` on the overlay of `design` and waits for its end. Buffer i of the plan's views
  // is `buffers[i]`, any number of different ones. The runs that this takes are submitted together,
  // up to 24 that are predicted to take kMaxRunSeconds, where the device has lists of runs. Throws
  // DeviceError; then what the buffers hold on the device is unknown.
  virtual void Run(std::string_view design, const npu::Plan& plan,
                   std::span<Buffer* const> buffers) = 0;

  // The words on their overlay, in a context of its own. Throws DeviceError.
  virtual std::unique_ptr<OtherStream> Load(const OtherOverlay& overlay,
                                            std::span<const uint32_t> words);

  // Gives up all contexts, so that the next Run makes fresh ones, and memory that nobody uses.
  virtual void Reset() = 0;

  virtual Counters counters() const = 0;

  // What people should be told about the use of the device, each once: lines from the `first` on of
  // those that there are.
  virtual std::vector<std::string> NoticesFrom(size_t first) const = 0;
};

inline std::unique_ptr<OtherStream> Device::Load(const OtherOverlay& overlay,
                                                 std::span<const uint32_t>) {
  throw DeviceError(Fault::kNoOverlay, name() + " takes no overlay of others: " + overlay.path);
}

}  // namespace ort_aie::npu_target
