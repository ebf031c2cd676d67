// An NPU as the executor sees it: buffers, overlays, runs. `xrt/xrt_device.cc` implements it with
// XRT; nothing outside of that folder includes XRT's headers.
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
#include "targets/npu/buffer.h"

namespace ort_aie::npu_target {

enum class Fault {
  kNoDevice,        // there is none, or the driver does not answer
  kNoOverlay,       // no package for the design
  kWrongOverlay,    // a package for another device or version, or of other content
  kContextRefused,  // all columns are busy
  kAllocation,
  kTimeout,
  kRunError,
  kDeviceLost,
};

// A failure of the device, not of the model. The text is for people.
class DeviceError : public std::runtime_error {
 public:
  DeviceError(Fault fault, const std::string& text) : std::runtime_error(text), fault_(fault) {}
  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};

// Memory of the host.
struct HostMemory {
  const void* data;
  size_t bytes;
};

// What a process has requested from the device since it opened it.
struct Counters {
  int64_t runs = 0;          // instruction streams executed
  int64_t submissions = 0;   // of one run or a list of runs, each with one wait
  int64_t bytes_to = 0;      // copied or flushed to the device
  int64_t bytes_from = 0;    // copied or flushed from the device
  int64_t streams_kept = 0;  // instruction streams reused or patched
  int64_t streams_built = 0;
  int64_t streams_dropped = 0;  // to make room for others
  int64_t stream_bytes = 0;     // now in the device's memory for instructions
  int64_t retries = 0;          // plans that ran again in a fresh context
  int64_t fallbacks = 0;        // plans that the host executed after a fault
  int64_t buffers = 0;          // alive now
  int64_t buffer_bytes = 0;
};

// An overlay that others built, with its own stream of words.
struct OtherOverlay {
  std::string path;    // the xclbin
  std::string uuid;    // from its header
  std::string kernel;  // its name
  std::string device;  // the device that it is for, as manifests name it
  size_t buffers;      // the number that it takes as arguments
};

class OtherStream {
 public:
  virtual ~OtherStream() = default;
  virtual std::span<uint32_t> words() = 0;
  // Executes the words on the kernel's buffers, in order, and waits for the end. Words [begin, end)
  // may have changed since the last run, the others have not. Throws DeviceError; then the contents
  // of the buffers on the device are unknown, and the stream cannot be used any more.
  virtual void Run(size_t begin, size_t end, std::span<Buffer* const> buffers) = 0;
};

// What one package does of a submission, without a change of overlay.
struct Part {
  std::string_view package;
  const npu::Invocations& invocations;
};

// One device of the process, for all sessions and threads. Every wait is bounded.
class Device {
 public:
  virtual ~Device() = default;

  virtual const std::string& name() const = 0;  // XRT's name, such as "NPU Strix"

  // The manifest of design `design` for this device, or null if there is no package.
  virtual const npu::Manifest* Overlay(std::string_view design) = 0;

  // Whether two designs are in one xclbin, so that a change from one to the other only loads a PDI.
  virtual bool ShareContext(std::string_view, std::string_view) { return false; }

  virtual std::shared_ptr<Buffer> Allocate(size_t bytes) = 0;

  // Pins ranges that do not change as long as their buffers live. A range is pinned in place, from
  // a read-only mapping of the same file if possible; else it is copied once. The result is already
  // on the device. Ranges of one file, or close together in memory, share a buffer of at most
  // kMaxBufferBytes, because a run can have few buffers.
  virtual std::vector<DeviceMemory> Pin(std::span<const HostMemory> ranges) = 0;

  // Executes parts whose packages share a context, and waits for their end. Buffer i of the
  // invocations' views is `buffers[i]`; there may be any number of different ones. If the device
  // supports lists of runs, the parts' runs are submitted together, up to 24 with a predicted time
  // of kMaxRunSeconds. Throws DeviceError; then the contents of the buffers on the device are
  // unknown.
  virtual void Submit(std::span<const Part> parts, std::span<Buffer* const> buffers) = 0;
  // The same for one part.
  void Run(std::string_view package, const npu::Invocations& invocations,
           std::span<Buffer* const> buffers) {
    const Part part{package, invocations};
    Submit({&part, 1}, buffers);
  }

  // The words on their overlay, in a context of its own. Throws DeviceError.
  virtual std::unique_ptr<OtherStream> Load(const OtherOverlay& overlay,
                                            std::span<const uint32_t> words);

  // Gives up all contexts, so that the next Run makes fresh ones, and all unused memory.
  virtual void Reset() = 0;

  virtual Counters counters() const = 0;

  // What people should know about the use of the device, each line once: the lines from
  // `first` on that exist so far.
  virtual std::vector<std::string> NoticesFrom(size_t first) const = 0;
};

inline std::unique_ptr<OtherStream> Device::Load(const OtherOverlay& overlay,
                                                 std::span<const uint32_t>) {
  throw DeviceError(Fault::kNoOverlay,
                    name() + " does not run overlays that others built: " + overlay.path);
}

}  // namespace ort_aie::npu_target
