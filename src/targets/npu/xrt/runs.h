// XRT runs: their arguments, the wait for their end, and the faults that end them.
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

// Every 2 s the driver checks whether a job was submitted or has ended since the last check. After
// two checks without one it resets all contexts (xdna-driver: aie2_tdr.c,
// aie2_rq_is_all_context_stuck in aie2_ctx_runqueue.c), so a job that hangs ends 4 to 6 s after it
// was submitted. A shorter wait would never learn at which operation it stopped. A list is one job,
// whatever its length.
inline constexpr std::chrono::milliseconds kJobTimeout{8000};

// Among the arguments of mlir-aie's kernels.
inline constexpr int kFirstBuffer = 3;

// A run whose instructions are on the device.
struct LoadedRun {
  CountedBo instructions;
  std::span<uint32_t> words;  // the host's part of them
  xrt::run run;
  std::vector<std::weak_ptr<xrt::bo_impl>> bound = {};  // the buffers of its arguments

  // Sets a buffer argument unless it already has this buffer.
  void Bind(size_t argument, const Buffer& buffer);
};

// If there is no room for the instructions, the oldest streams of `memory` make some, because other
// code in this process may use a part of the heap. Throws DeviceError, kAllocation with `what`.
LoadedRun LoadRun(const xrt::device& device, const xrt::kernel& kernel,
                  std::span<const uint32_t> words, const std::string& what,
                  npu::StreamMemory& memory);

// Words [begin, end) of `words` as whole cache lines, the smallest unit of synchronisation.
std::pair<size_t, size_t> WholeLines(size_t begin, size_t end, size_t words);

// The part of a memory group that two kernels have in common; the rest identifies the hardware
// context (struct xcl_bo_flags in XRT's xrt_mem.h).
uint16_t BankOf(xrt::memory_group group);

// The group of a kernel's buffer arguments. Throws Error unless all `count` of them are in one
// group, because a buffer must fit each; throws XRT's exceptions if the kernel has fewer.
xrt::memory_group GroupOfBuffers(const xrt::kernel& kernel, size_t count);

// Bytes of a stream in the device's memory for instructions, counted while it lives.
class CountedStream {
 public:
  explicit CountedStream(size_t bytes);
  CountedStream(const CountedStream&) = delete;
  ~CountedStream();

  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
};

// Instead of an operation of a stream.
inline constexpr uint32_t kNoOperation = 0xffffffff;

// How a run ended that did not complete.
struct Aborted {
  int state;           // ERT_CMD_STATE_*
  uint32_t operation;  // the operation of the stream at which it stopped
  std::string error;

  Fault fault() const;
  // "ended in STATE (error)"
  std::string text() const;
};

// How a list ended that did not complete, and at which run; null if nothing is known about that.
struct AbortedList {
  Aborted aborted;
  xrt::run run;
};

// As Execute, for a list of `runs` runs, each of which has its arguments.
std::optional<AbortedList> Execute(xrt::runlist& list, size_t runs, std::string_view name);

// Executes a run, with `name` in the timeline, and waits for its end. Returns nothing if the run
// completed, else how it ended. A run that does not answer is kept for ever, so the caller may
// release `run`. Throws DeviceError.
std::optional<Aborted> Execute(xrt::run& run, std::string_view name);

}  // namespace ort_aie::npu_target
