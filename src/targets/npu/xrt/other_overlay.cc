#include "targets/npu/xrt/other_overlay.h"

#include <xrt/experimental/xrt_xclbin.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "targets/npu/xrt/faults.h"
#include "targets/npu/xrt/overlays.h"
#include "targets/npu/xrt/runs.h"

namespace ort_aie::npu_target {

namespace {

size_t WholeUnits(size_t bytes) {
  return (bytes + npu::kStreamUnit - 1) / npu::kStreamUnit * npu::kStreamUnit;
}

}  // namespace

XrtOtherStream::XrtOtherStream(xrt::device device, const OtherOverlay& overlay,
                               std::span<const uint32_t> words, npu::StreamMemory& memory)
    : overlay_(overlay), counted_(WholeUnits(words.size_bytes())) {
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
  Ask(Fault::kWrongOverlay, name, [&] {
    kernel_ = xrt::kernel(context_, overlay_.kernel);
    group_ = GroupOfBuffers(kernel_, overlay_.buffers);
  });
  const int64_t dropped = memory.dropped();
  while (!instructions_) {
    try {
      Load(device, words);
    } catch (const DeviceError& error) {
      // As for streams of designs: one less is room for this one.
      if (error.fault() != Fault::kAllocation || !memory.DropOldest()) throw;
    }
  }
  Tally::OfProcess().streams_dropped += memory.dropped() - dropped;
}

void XrtOtherStream::Load(xrt::device& device, std::span<const uint32_t> words) {
  const size_t bytes = words.size_bytes();
  Ask(Fault::kAllocation, Concat("an instruction buffer of ", bytes, " bytes"), [&] {
    xrt::bo bo(device, bytes, xrt::bo::flags::cacheable,
               static_cast<xrt::memory_group>(kernel_.group_id(kInstructionArgument)));
    words_ = {bo.map<uint32_t*>(), words.size()};
    std::ranges::copy(words, words_.begin());
    run_ = NewRun(kernel_, bo, words.size());
    instructions_.emplace(std::move(bo), "an instruction buffer");
  });
  instructions_->ToDevice(0, bytes);
}

void XrtOtherStream::Run(size_t begin, size_t end, std::span<Buffer* const> buffers) {
  if (!run_)
    throw DeviceError(Fault::kRunError, Concat("the run on ", overlay_.path, " has failed"));
  if (begin < end) {
    const auto [first, last] = WholeLines(begin, end, words_.size());
    instructions_->ToDevice(first * sizeof(uint32_t), (last - first) * sizeof(uint32_t));
  }
  Bind(buffers);
  try {
    const std::optional<Aborted> aborted = Execute(run_, "fused decode");
    if (!aborted) return;
    std::string text = Concat("a run on the overlay ", overlay_.path, " ", aborted->text());
    if (aborted->operation != kNoOperation) {
      text += Concat("; it stopped at operation ", aborted->operation);
    }
    throw DeviceError(aborted->fault(), text);
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
    if (Refers(bound_[i], bo)) continue;
    Ask(Fault::kRunError, "setting the arguments of a run",
        [&] { run_.set_arg(kFirstBuffer + static_cast<int>(i), bo); });
    bound_[i] = bo.get_handle();
  }
}

}  // namespace ort_aie::npu_target
