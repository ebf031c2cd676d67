// The state of a hardware context of the stand-in.
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

  // Blocks while as many commands are active as the driver allows. Returns the number of resets so
  // far: a reset aborts the commands that were active before it.
  int BeginCommand();
  void EndCommand();
  int resets() const { return resets_; }
  void CountReset() { ++resets_; }

  const xrt::device device;
  const xrt::xclbin xclbin;
  const hw_context::access_mode mode;
  const int64_t id;    // in the child
  const uint8_t slot;  // part of its group ids

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int commands_ = 0;
  std::atomic<int> resets_{0};
};

}  // namespace xrt
