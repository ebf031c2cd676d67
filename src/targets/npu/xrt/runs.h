// Runs of XRT's: their arguments, the wait for their end, and the faults that end them.
#pragma once

#include <xrt/experimental/xrt_kernel.h>
#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_kernel.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "npu/stream_cache.h"
#include "targets/npu/device.h"
#include "targets/npu/xrt/buffers.h"

namespace ort_aie::npu_target {

// The driver looks every 2 s whether a job was submitted or has ended since, and resets all
// contexts when it was none twice (xdna-driver: aie2_tdr.c, aie2_rq_is_all_context_stuck in
// aie2_ctx_runqueue.c): a job that hangs ends 4 to 6 s after it was submitted. Who waits for less
// never hears at which operation it stopped. A list is one job, whatever its length.
inline constexpr std::chrono::milliseconds kJobTimeout{8000};

// Of the arguments of mlir-aie's kernels.
inline constexpr int kFirstBuffer = 3;

// A run whose instructions are on the device.
struct LoadedRun {
  CountedBo instructions;
  std::span<uint32_t> words;  // the host's side of them
  xrt::run run;
  std::vector<std::weak_ptr<xrt::bo_impl>> bound = {};  // what its buffer arguments were set to

  // Sets a buffer argument unless it is what it was set to; whether it did.
  bool Bind(size_t argument, const Buffer& buffer);
};

// Where there is no room for the instructions, the oldest streams of `memory` make some: others of
// this process may have a part of the heap. Throws DeviceError, kAllocation with `what`.
LoadedRun LoadRun(const xrt::device& device, const xrt::kernel& kernel,
                  std::span<const uint32_t> words, const std::string& what,
                  npu::StreamMemory& memory);

// Words [begin, end) of `words` as whole cache lines, which is what synchronisation moves at least.
std::pair<size_t, size_t> WholeLines(size_t begin, size_t end, size_t words);

// Of a memory group, what two kernels have in common: the rest names the hardware context (struct
// xcl_bo_flags in XRT's xrt_mem.h).
uint16_t BankOf(xrt::memory_group group);

// The group of a kernel's buffer arguments. Throws Error unless all `count` of them are in one, for
// a buffer must do for each, and XRT's exceptions where it has fewer.
xrt::memory_group GroupOfBuffers(const xrt::kernel& kernel, size_t count);

// Bytes of the device's memory for instructions that a stream takes, counted while it lives.
class CountedStream {
 public:
  explicit CountedStream(size_t bytes);
  CountedStream(const CountedStream&) = delete;
  ~CountedStream();

  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
};

// In place of an operation of a stream.
inline constexpr uint32_t kNoOperation = 0xffffffff;

// How a run ended that did not complete.
struct Aborted {
  int state;           // ERT_CMD_STATE_*
  uint32_t operation;  // of the stream, at which it stopped
  std::string error;

  Fault fault() const;
  // "ended in STATE (error)"
  std::string text() const;
};

// The end that XRT's exception tells of a run.
Aborted AbortedBy(const xrt::run::command_error& error, const xrt::run& run);
Aborted AbortedBy(const xrt::runlist::command_error& error, const xrt::run& run);
// That of what has not answered within kJobTimeout.
Aborted NoAnswer();

// Executes a run, in the timeline as `name`, and waits for its end, which it returns unless it
// completed. One that does not answer, whose end nobody has seen, is kept for ever: whoever called
// may let go of `run`. Throws DeviceError.
std::optional<Aborted> Execute(xrt::run& run, std::string_view name);

}  // namespace ort_aie::npu_target
