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
inline constexpr uint64_t kTransaction = 3;  // opcode of an instruction stream
// As the driver says that it does not know.
inline constexpr uint32_t kNoOperation = 0xFFFFFFFF;

// What the driver leaves of a command that failed: ert_ctx_health_data of XRT's ert.h, version 0.
using Health = std::array<uint32_t, 7>;
inline Health HealthAt(uint32_t operation) { return {0, operation}; }

struct Outcome {
  ert_cmd_state state = ERT_CMD_STATE_NEW;
  double seconds = 0;  // of the device
  std::string error;
  uint32_t operation = kNoOperation;  // of the stream, where it stopped
};

// One execution. Time is the device's: a wait of 100 ms sees 0.1 s of it pass, however long the
// simulation takes.
class Command {
 public:
  explicit Command(std::vector<std::shared_ptr<xrt::bo_impl>> held) : held_(std::move(held)) {}

  void Finish(Outcome outcome);
  // Called when its turn comes; false if it was cancelled before.
  bool Begin();
  void Cancel();  // of no effect on what has begun

  ert_cmd_state state() const;
  bool active() const;  // on its way, or at the device
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
  bool cancelled_ = false;
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
  ert_cmd_state State() const;                          // NEW before the first start
  std::shared_ptr<ort_aie::sim::Command> Last() const;  // throws before it

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
