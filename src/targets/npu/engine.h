// Shared by the parts of the executor: the device, scratch memory, counters.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "targets/host/kernels/kernels.h"
#include "targets/npu/device.h"
#include "targets/npu/executor.h"
#include "targets/npu/schedule/device_contents.h"
#include "targets/npu/schedule/facts.h"
#include "targets/trace.h"

namespace ort_aie::npu_target {

class Engine {
 public:
  Engine(std::shared_ptr<Device> device, const ExecutorOptions& options);

  Device& device() const { return *device_; }
  const DeviceFacts& facts() const { return facts_; }
  const HasOverlay& overlays() const { return facts_.has; }
  const host::Kernels& kernels() const { return kernels_; }
  const ExecutorOptions& options() const { return options_; }

  // Identifies the engine within the process, and the content of its buffers on the device. It
  // changes after every fault.
  uint64_t generation() const { return generation_; }
  // Gives up contexts and buffers of `generation`, if that is still the current one.
  void Renew(uint64_t generation);
  // Does `work` and, if the device fails, does it again in a fresh context, as long as
  // again(fault, faults) allows it. Throws the last fault otherwise.
  template <typename Work, typename Again>
  void Retry(const Work& work, const Again& again) {
    for (int faults = 1;; ++faults) {
      const uint64_t generation = generation_;
      try {
        return work();
      } catch (const DeviceError& error) {
        if (faults == 1) Count([](ExecutorCounters& counters) { ++counters.retries; });
        if (!again(error, faults)) throw;
      }
      Renew(generation);
    }
  }
  // A fresh context has not cured a fault: the host goes on, unless faults are to be raised.
  void Fallback(const DeviceError& fault);
  // After a fault: nothing on the device is used again.
  void Forget();
  // As Forget. Also gives up contexts and memory, because the device is not used again.
  void GiveUp();

  void Submit(std::span<const Part> parts, std::span<Buffer* const> buffers);

  // Passes a line about the device to ExecutorOptions::report, or prints it to stderr.
  void Report(std::string_view line) const;
  // Reports the device's notices, each once.
  void ReportNotices();

  template <typename F>
  void Count(const F& f) {
    const std::lock_guard lock(mutex_);
    f(counters_);
  }
  ExecutorCounters counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

  // For one prompt's projection at a time; see DeviceContents.
  ScratchBuffers TakeScratch(size_t bytes, bool both, ScratchBuffers before = {});

 private:
  std::shared_ptr<Device> device_;
  const ExecutorOptions options_;
  const DeviceFacts facts_;
  const host::Kernels& kernels_;
  std::atomic<uint64_t> generation_;
  std::mutex renewing_;
  mutable std::mutex mutex_;  // guards the counters
  ExecutorCounters counters_;
  std::mutex notices_mutex_;
  size_t notices_ = 0;  // how many were reported

  std::mutex scratch_mutex_;
  uint64_t scratch_generation_ = 0;
  std::shared_ptr<Buffer> scratch_[2];
};

}  // namespace ort_aie::npu_target
