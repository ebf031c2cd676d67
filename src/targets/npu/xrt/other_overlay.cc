#include "targets/npu/xrt/other_overlay.h"

#include <xrt/detail/ert.h>
#include <xrt/experimental/xrt_xclbin.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "targets/npu/xrt/context.h"
#include "targets/npu/xrt/faults.h"
#include "targets/npu/xrt/overlays.h"
#include "targets/trace.h"

namespace ort_aie::npu_target {
namespace {

// A transaction: the buffer holds register operations. Arguments are those of mlir-aie's kernels.
constexpr uint64_t kOpcode = 3;
constexpr int kOpcodeArgument = 0, kInstructionArgument = 1, kCountArgument = 2, kFirstBuffer = 3;
// What synchronisation moves at least.
constexpr size_t kCacheLineWords = 16;

}  // namespace

XrtOtherStream::XrtOtherStream(xrt::device device, const OtherOverlay& overlay,
                               std::span<const uint32_t> words)
    : overlay_(overlay) {
  const std::string& name = overlay_.path;
  try {
    const std::string uuid = UuidOf(name);
    Require(uuid == overlay_.uuid, "its uuid is ", uuid, ", and ", overlay_.uuid, " was packaged");
  } catch (const Error& error) {
    throw DeviceError(Fault::kWrongOverlay, Concat(name, ": ", error.what()));
  }
  const xrt::xclbin xclbin = Ask(Fault::kWrongOverlay, name, [&] { return xrt::xclbin(name); });
  const xrt::uuid uuid =
      Ask(Fault::kWrongOverlay, name, [&] { return device.register_xclbin(xclbin); });
  context_ = Ask(Fault::kContextRefused, Concat("a hardware context for ", name),
                 [&] { return xrt::hw_context(device, uuid); });
  const size_t bytes = words.size() * sizeof(uint32_t);
  Ask(Fault::kWrongOverlay, name, [&] {
    kernel_ = xrt::kernel(context_, overlay_.kernel);
    group_ = static_cast<xrt::memory_group>(kernel_.group_id(kFirstBuffer));
  });
  Ask(Fault::kAllocation, Concat("an instruction buffer of ", bytes, " bytes"), [&] {
    xrt::bo bo(device, bytes, xrt::bo::flags::cacheable,
               static_cast<xrt::memory_group>(kernel_.group_id(kInstructionArgument)));
    words_ = {bo.map<uint32_t*>(), words.size()};
    std::ranges::copy(words, words_.begin());
    run_ = xrt::run(kernel_);
    run_.set_arg(kOpcodeArgument, kOpcode);
    run_.set_arg(kInstructionArgument, bo);
    run_.set_arg(kCountArgument, static_cast<uint32_t>(words.size()));
    instructions_.emplace(std::move(bo), "an instruction buffer");
  });
  instructions_->ToDevice(0, bytes);
}

void XrtOtherStream::Run(size_t begin, size_t end, std::span<Buffer* const> buffers) {
  if (begin < end) {
    const size_t first = begin / kCacheLineWords * kCacheLineWords;
    const size_t last =
        std::min(words_.size(), (end + kCacheLineWords - 1) / kCacheLineWords * kCacheLineWords);
    instructions_->ToDevice(first * sizeof(uint32_t), (last - first) * sizeof(uint32_t));
  }
  Bind(buffers);
  ++Tally::OfProcess().runs;
  ++Tally::OfProcess().submissions;
  try {
    Execute();
  } catch (const DeviceError&) {
    // Only the end of the context makes sure that the run no longer writes to the buffers.
    run_ = {};
    kernel_ = {};
    context_ = {};
    throw;
  }
}

void XrtOtherStream::Bind(std::span<Buffer* const> buffers) {
  bound_.resize(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    const xrt::bo& bo = static_cast<XrtBuffer*>(buffers[i])->bo();
    const std::shared_ptr<xrt::bo_impl>& handle = bo.get_handle();
    if (!bound_[i].owner_before(handle) && !handle.owner_before(bound_[i])) continue;
    Ask(Fault::kRunError, "setting the arguments of a run",
        [&] { run_.set_arg(kFirstBuffer + static_cast<int>(i), bo); });
    bound_[i] = handle;
  }
}

void XrtOtherStream::Execute() {
  {
    const TraceSpan traced("dispatch", "fused decode");
    Ask(Fault::kRunError, "starting a run", [&] { run_.start(); });
  }
  const TraceSpan traced("wait", "fused decode");
  const auto aborted = [&](const char* state, Fault fault) {
    return DeviceError(fault, Concat("a run on the overlay ", overlay_.path, " ended in ", state));
  };
  std::cv_status status = std::cv_status::no_timeout;
  try {
    status = run_.wait2(kJobTimeout);
  } catch (const xrt::run::command_error& error) {
    const int state = error.get_command_state();
    if (state == ERT_CMD_STATE_TIMEOUT) throw aborted("TIMEOUT", Fault::kTimeout);
    if (state == ERT_CMD_STATE_NORESPONSE) throw aborted("NORESPONSE", Fault::kDeviceLost);
    throw aborted(error.what(), Fault::kRunError);
  } catch (const std::exception& error) {
    ThrowFault(Fault::kRunError, "waiting for a run", error);
  }
  if (status == std::cv_status::timeout) throw aborted("no answer", Fault::kTimeout);
}

}  // namespace ort_aie::npu_target
