// Kernels, runs, and one execution of a run on its way through the device.
#pragma once

#include <array>
#include <atomic>
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
// The driver's value for an unknown operation.
inline constexpr uint32_t kNoOperation = 0xFFFFFFFF;

struct Outcome {
  ert_cmd_state state = ERT_CMD_STATE_NEW;
  double seconds = 0;  // of the device's time
  std::string error;
  uint32_t operation = kNoOperation;  // the operation of the stream at which it stopped
};

// One execution. Time is the device's: during a wait of 100 ms, 0.1 s of it pass, however long the
// simulation takes.
class Command {
 public:
  explicit Command(std::vector<std::shared_ptr<Allocation>> held) : held_(std::move(held)) {}

  void Finish(Outcome outcome);
  // Called when its turn comes; false if it was cancelled before.
  bool Begin();
  void Cancel();  // has no effect on a command that has begun

  ert_cmd_state state() const;
  bool active() const;  // waiting for the device, or on it
  // Whether a wait or a check of the state has seen the end. For XRT it runs until then.
  bool seen() const;
  ert_cmd_state Look();
  std::string error() const;
  uint32_t operation() const;
  double seconds();  // waits for the end
  // Waits for the end; 0 waits without a limit. Returns true at the end, false if the time is over.
  // Throws ENODEV if the device has gone.
  bool Wait(std::chrono::milliseconds timeout);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  ert_cmd_state state_ = ERT_CMD_STATE_QUEUED;
  bool done_ = false;
  bool seen_ = false;
  bool cancelled_ = false;
  double seconds_ = 0;  // of the device's time
  double passed_ = 0;   // part of it that waits have seen
  std::string error_;
  uint32_t operation_ = kNoOperation;
  std::vector<std::shared_ptr<Allocation>> held_;  // not freed while the device uses them
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
  ~run_impl();
  run_impl(const run_impl&) = delete;
  run_impl& operator=(const run_impl&) = delete;

  // The memory of its buffer arguments, instructions first.
  using Memories = std::array<std::weak_ptr<ort_aie::sim::Allocation>, 1 + ort_aie::sim::kBuffers>;

  void SetValue(int index, const void* value, size_t bytes);
  void SetBuffer(int index, const bo& buffer);
  // For a run in a list: `failed` says whether a run before it failed, and is set if this one
  // fails.
  void Start(std::shared_ptr<std::atomic<bool>> failed = nullptr);
  std::string Unset() const;  // names of arguments; those after the last buffer are optional
  Memories Bound() const;
  ert_cmd_state State() const;                          // NEW before the first start
  std::shared_ptr<ort_aie::sim::Command> Last() const;  // throws before the first start
  // The packet of the last command, up to date: the driver stores in it where a command stopped.
  ert_packet* Packet();

  const std::shared_ptr<kernel_impl> kernel;
  bool listed = false;  // in a runlist, which starts it

 private:
  // Like the driver, it refers to the memory without keeping it alive.
  struct Span {
    std::weak_ptr<ort_aie::sim::Allocation> memory;
    size_t offset = 0, size = 0;  // in the device's memory; size 0: not set
  };

  ort_aie::sim::Json Request() const;

  mutable std::mutex mutex_;
  std::optional<uint64_t> opcode_;
  std::optional<uint32_t> count_;
  Span instructions_;
  std::array<Span, ort_aie::sim::kBuffers> buffers_;
  std::shared_ptr<ort_aie::sim::Command> command_;
  bool own_ = false;  // `command_` was started by this run, not by a list
  alignas(ert_packet) std::array<uint32_t, 8> packet_{};
};

}  // namespace xrt
