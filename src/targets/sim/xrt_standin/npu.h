// The modelled NPU from its driver's view: memory, contexts, limits, and whether it is still
// present.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>

#include "targets/sim/control.h"
#include "targets/sim/xrt_standin/child.h"
#include "targets/sim/xrt_standin/heap.h"
#include "xrt/experimental/xrt_xclbin.h"
#include "xrt/xrt_uuid.h"

namespace ort_aie::sim {

// As XRT's own errors, which also derive from std::system_error.
[[noreturn]] inline void Throw(int error, const std::string& text) {
  throw std::system_error(error, std::generic_category(), text);
}

// As the driver's: "DRM_IOCTL_AMDXDNA_CREATE_BO IOCTL failed (err=-12): Cannot allocate memory".
[[noreturn]] inline void ThrowIoctl(int error, const std::string& name) {
  Throw(error, "DRM_IOCTL_AMDXDNA_" + name + " IOCTL failed (err=-" + std::to_string(error) + ")");
}

// What this process has requested from modelled NPUs.
struct Totals {
  std::atomic<int64_t> buffers{0};
  std::atomic<int64_t> buffer_bytes{0};
  std::atomic<int64_t> instruction_bytes{0};
  std::atomic<int64_t> contexts{0};
  std::atomic<int64_t> runs{0};
  std::atomic<int64_t> bytes_synced{0};
  std::atomic<int64_t> device_nanoseconds{0};

  static Totals& Get();
};

// A range of the device's memory. It holds poison at first, and is counted while it lives.
class Allocation {
 public:
  Allocation(std::shared_ptr<Heap> heap, size_t bytes, bool instructions);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  size_t offset() const { return offset_; }
  uint8_t* data() const { return heap_->at(offset_); }

 private:
  std::shared_ptr<Heap> heap_;
  size_t bytes_;
  bool instructions_;
  size_t offset_;
};

class Npu {
 public:
  // The device of this process; it lives as long as anything holds it. Throws std::system_error,
  // with XRT's words, if there is no device, and if the child does not start.
  static std::shared_ptr<Npu> Open();
  static unsigned Count();    // 1, or 0 after it was removed
  static int ChildProcess();  // 0 if there is none
  static void PlugIn();

  explicit Npu(const std::string& device);

  const std::string& name() const { return name_; }
  bool first_generation() const { return first_generation_; }
  Child& child() { return child_; }

  // Throws ENODEV, as the ioctl `name` does, after the device has gone.
  void RequirePresent(const std::string& name) const;
  bool removed() const { return removed_; }
  void Remove();

  // Throws ENOMEM, and injected faults.
  std::unique_ptr<Allocation> Allocate(size_t bytes, bool instructions);

  void Register(const xrt::xclbin& xclbin);
  xrt::xclbin Registered(const xrt::uuid& uuid) const;  // throws EINVAL

  // Opens a context of the child on an overlay. Throws what the driver throws if it cannot.
  int64_t OpenContext(const xrt::xclbin& xclbin);
  void CloseContext(int64_t context);  // never waits

 private:
  void TakeContext();

  const bool first_generation_;
  std::shared_ptr<Heap> heap_;
  Child child_;
  std::string name_;
  std::atomic<bool> removed_{false};
  mutable std::mutex mutex_;
  std::map<xrt::uuid, xrt::xclbin> xclbins_;
  int contexts_ = 0;
};

// The file from which an xclbin was read; the child reads it again.
const std::string& FileOf(const xrt::xclbin& xclbin);

}  // namespace ort_aie::sim

namespace xrt_core {
// XRT's handle of a device, opaque to its users.
class device : public ort_aie::sim::Npu {
  using Npu::Npu;
};
}  // namespace xrt_core
