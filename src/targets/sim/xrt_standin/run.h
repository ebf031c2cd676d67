// Kernels, runs, and one execution of a run on its way through the device.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "targets/sim/xrt_standin/bo.h"
#include "targets/sim/xrt_standin/hw_context.h"
#include "xrt/experimental/xrt_kernel.h"
#include "xrt/xrt_kernel.h"

namespace ort_aie::sim {

// Arguments of the kernel that mlir-aie puts into every xclbin.
enum Argument { kOpcode = 0, kInstructions = 1, kInstructionCount = 2, kFirstBuffer = 3 };
inline constexpr int kBuffers = 5;
inline constexpr uint64_t kTransaction = 3;           // opcode of an instruction stream
inline constexpr uint32_t kNoOperation = 0xFFFFFFFF;  // as the driver says that it does not know

// What the driver leaves of a command that failed: ert_ctx_health_data of XRT's ert.h, of version
// 0.
using Health = std::array<uint32_t, 7>;
inline Health HealthAt(uint32_t operation) { return {0, operation}; }

// One execution. Time is the device's: a wait of 100 ms sees 0.1 s of it pass, however long the
// simulation takes.
class Command {
 public:
  explicit Command(std::vector<std::shared_ptr<xrt::bo_impl>> held) : held_(std::move(held)) {}

  // `operation` of the stream is where it stopped, if that is known.
  void Finish(ert_cmd_state state, double seconds, std::string error,
              uint32_t operation = kNoOperation);
  // Takes it back if it has not reached the device; whether that was so.
  bool Cancel();
  // Takes it to the device, unless it was taken back.
  bool Begin();

  ert_cmd_state state() const;
  std::string error() const;
  uint32_t operation() const;
  // Waits for the end, 0 for as long as it takes. True at the end; false when the time is over.
  // Throws ENODEV if the device has gone.
  bool Wait(std::chrono::milliseconds timeout);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ert_cmd_state state_ = ERT_CMD_STATE_QUEUED;
  bool done_ = false;
  double seconds_ = 0;  // of the run that no wait has seen pass
  std::string error_;
  uint32_t operation_ = kNoOperation;
  std::vector<std::shared_ptr<xrt::bo_impl>> held_;  // nobody frees them under the device
};

}  // namespace ort_aie::sim

namespace xrt {

class kernel_impl {
 public:
  kernel_impl(hw_context context, std::string name);

  const hw_context context;
  const std::string name;
};

class run_impl {
 public:
  explicit run_impl(std::shared_ptr<kernel_impl> kernel) : kernel(std::move(kernel)) {}

  void SetValue(int index, const void* value, size_t bytes);
  void SetBuffer(int index, const bo& buffer);
  void Start();
  std::shared_ptr<ort_aie::sim::Command> Last() const;  // throws before the first start

  const std::shared_ptr<kernel_impl> kernel;
  bool listed = false;  // in a runlist, which starts it

 private:
  ort_aie::sim::Json Request() const;

  mutable std::mutex mutex_;
  uint64_t opcode_ = 0;
  uint32_t count_ = 0;
  std::shared_ptr<bo_impl> instructions_;
  std::array<std::shared_ptr<bo_impl>, ort_aie::sim::kBuffers> buffers_;
  std::shared_ptr<ort_aie::sim::Command> command_;
};

}  // namespace xrt
