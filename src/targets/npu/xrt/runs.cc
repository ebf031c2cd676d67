#include "targets/npu/xrt/runs.h"

#include <xrt/detail/ert.h>

#include <algorithm>
#include <condition_variable>
#include <exception>

#include "base/error.h"
#include "targets/npu/xrt/faults.h"
#include "targets/trace.h"

namespace ort_aie::npu_target {
namespace {

// Arguments of mlir-aie's kernels.
constexpr int kOpcodeArgument = 0, kInstructionArgument = 1, kCountArgument = 2;
// A transaction: the buffer holds register operations.
constexpr uint64_t kOpcode = 3;
constexpr size_t kCacheLineWords = 16;

// The operation of the stream at which a command stopped. The driver leaves it in the packet of a
// command that timed out. (aie_error::data() would give the same, but libxrt_coreutil 2.25 does not
// export it.)
uint32_t StoppedAt(const xrt::run& run) {
  const ert_packet* const packet = run.get_ert_packet();
  const ert_ctx_health_data* const health = get_ert_ctx_health_data(packet);
  if (health == nullptr) return kNoOperation;
  if (health->version == ERT_CTX_HEALTH_DATA_V0) return health->txn_op_idx;
  const ert_ctx_health_data_v1* const newer = get_ert_ctx_health_data_v1(packet);
  return newer->npu_gen == NPU_GEN_AIE2 ? newer->aie2.txn_op_idx : kNoOperation;
}

const char* StateName(int state) {
  switch (state) {
    case ERT_CMD_STATE_ERROR:
      return "ERROR";
    case ERT_CMD_STATE_ABORT:
      return "ABORT";
    case ERT_CMD_STATE_TIMEOUT:
      return "TIMEOUT";
    case ERT_CMD_STATE_NORESPONSE:
      return "NORESPONSE";
    default:
      return "an unexpected state";
  }
}

// The end of a run that XRT's exception reports.
template <typename CommandError>
Aborted AbortedBy(const CommandError& error, const xrt::run& run) {
  return {error.get_command_state(), StoppedAt(run), error.what()};
}

// The end of a run that has not answered within kJobTimeout.
Aborted NoAnswer() { return {ERT_CMD_STATE_TIMEOUT, kNoOperation, "no answer"}; }

// XRT ends the process if a run is destroyed before its end was seen (run_impl::~run_impl). So a
// run without an answer is kept.
void KeepForEver(const xrt::run& run) {
  [[maybe_unused]] const xrt::run* const kept = std::make_unique<xrt::run>(run).release();
}

// Also false if what it referred to is gone and another buffer is at its address.
bool Refers(const std::weak_ptr<xrt::bo_impl>& reference, const xrt::bo& bo) {
  const std::shared_ptr<xrt::bo_impl>& handle = bo.get_handle();
  return !reference.owner_before(handle) && !handle.owner_before(reference);
}

LoadedRun LoadRun(const xrt::device& device, const xrt::kernel& kernel,
                  std::span<const uint32_t> words) {
  const auto group = static_cast<xrt::memory_group>(kernel.group_id(kInstructionArgument));
  xrt::bo bo(device, words.size_bytes(), xrt::bo::flags::cacheable, group);
  const std::span<uint32_t> mapped(bo.map<uint32_t*>(), words.size());
  std::ranges::copy(words, mapped.begin());
  xrt::run run(kernel);
  run.set_arg(kOpcodeArgument, kOpcode);
  run.set_arg(kInstructionArgument, bo);
  run.set_arg(kCountArgument, static_cast<uint32_t>(words.size()));
  return {CountedBo(std::move(bo), "an instruction buffer"), mapped, std::move(run)};
}

}  // namespace

void LoadedRun::Bind(size_t argument, const Buffer& buffer) {
  const xrt::bo& bo = static_cast<const XrtBuffer&>(buffer).bo();
  bound.resize(std::max(bound.size(), argument + 1));
  if (Refers(bound[argument], bo)) return;
  Ask(Fault::kRunError, "setting the arguments of a run",
      [&] { run.set_arg(kFirstBuffer + static_cast<int>(argument), bo); });
  bound[argument] = bo.get_handle();
}

LoadedRun LoadRun(const xrt::device& device, const xrt::kernel& kernel,
                  std::span<const uint32_t> words, const std::string& what,
                  npu::StreamMemory& memory) {
  while (true) {
    try {
      LoadedRun loaded =
          Ask(Fault::kAllocation, what, [&] { return LoadRun(device, kernel, words); });
      loaded.instructions.ToDevice(0, words.size_bytes());
      return loaded;
    } catch (const DeviceError& error) {
      if (error.fault() != Fault::kAllocation || !memory.DropOldest()) throw;
    }
  }
}

std::pair<size_t, size_t> WholeLines(size_t begin, size_t end, size_t words) {
  const size_t lines = (end + kCacheLineWords - 1) / kCacheLineWords;
  return {begin / kCacheLineWords * kCacheLineWords, std::min(words, lines * kCacheLineWords)};
}

uint16_t BankOf(xrt::memory_group group) { return static_cast<uint16_t>(group); }

xrt::memory_group GroupOfBuffers(const xrt::kernel& kernel, size_t count) {
  const auto group_of = [&](int i) { return static_cast<xrt::memory_group>(kernel.group_id(i)); };
  const xrt::memory_group group = group_of(kFirstBuffer);
  for (int i = kFirstBuffer + 1; i < kFirstBuffer + static_cast<int>(count); ++i) {
    Require(group_of(i) == group, "argument ", i, " of its kernel is in memory group ", group_of(i),
            ", but argument ", kFirstBuffer, " is in ", group, "; one buffer must fit both");
  }
  return group;
}

CountedStream::CountedStream(size_t bytes) : bytes_(bytes) {
  Tally::OfProcess().stream_bytes += static_cast<int64_t>(bytes_);
}

CountedStream::~CountedStream() { Tally::OfProcess().stream_bytes -= static_cast<int64_t>(bytes_); }

Fault Aborted::fault() const {
  if (state == ERT_CMD_STATE_TIMEOUT) return Fault::kTimeout;
  if (state == ERT_CMD_STATE_NORESPONSE) return Fault::kDeviceLost;
  return Fault::kRunError;
}

std::string Aborted::text() const {
  return Concat("ended in ", StateName(state), " (", error, ")");
}

std::optional<AbortedList> Execute(xrt::runlist& list, size_t runs, std::string_view name) {
  Tally::OfProcess().runs += static_cast<int64_t>(runs);
  ++Tally::OfProcess().submissions;
  {
    const TraceSpan traced("dispatch", name);
    Ask(Fault::kRunError, "starting a list of runs", [&] { list.execute(); });
  }
  const TraceSpan traced("wait", name);
  try {
    if (list.wait(kJobTimeout) == std::cv_status::no_timeout) return std::nullopt;
  } catch (const xrt::runlist::command_error& error) {
    const xrt::run failed = error.get_run();
    return AbortedList{AbortedBy(error, failed), failed};
  } catch (const std::exception& error) {
    ThrowFault(Fault::kRunError, "waiting for a list of runs", error);
  }
  return AbortedList{NoAnswer(), {}};
}

std::optional<Aborted> Execute(xrt::run& run, std::string_view name) {
  ++Tally::OfProcess().runs;
  ++Tally::OfProcess().submissions;
  {
    const TraceSpan traced("dispatch", name);
    Ask(Fault::kRunError, "starting a run", [&] { run.start(); });
  }
  const TraceSpan traced("wait", name);
  try {
    if (run.wait2(kJobTimeout) == std::cv_status::no_timeout) return std::nullopt;
  } catch (const xrt::run::command_error& error) {
    return AbortedBy(error, run);
  } catch (const std::exception& error) {
    KeepForEver(run);
    ThrowFault(Fault::kRunError, "waiting for a run", error);
  }
  KeepForEver(run);
  return NoAnswer();
}

}  // namespace ort_aie::npu_target
