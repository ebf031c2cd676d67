// What a hardware context of the stand-in holds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "targets/sim/xrt_standin/npu.h"
#include "xrt/xrt_hw_context.h"

namespace xrt {

class hw_context_impl {
 public:
  hw_context_impl(const xrt::device& device, const xrt::uuid& uuid, hw_context::access_mode mode);
  ~hw_context_impl();

  // Blocks while as many commands are under way as the driver takes. Returns the number of resets
  // so far: a reset aborts what was under way before it.
  int BeginCommand();
  void EndCommand();
  int resets() const { return resets_; }
  void CountReset() { ++resets_; }

  const xrt::device device;
  const xrt::xclbin xclbin;
  const hw_context::access_mode mode;
  const int64_t id;    // of the child
  const uint8_t slot;  // what group ids carry

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int commands_ = 0;
  std::atomic<int> resets_{0};
};

}  // namespace xrt
