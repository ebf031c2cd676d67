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

XrtOtherStream::XrtOtherStream(xrt::device device, const OtherOverlay& overlay,
                               std::span<const uint32_t> words, npu::StreamMemory& memory)
    : overlay_(overlay), counted_(npu::RunBytes(words.size())) {
  const std::string& name = overlay_.path;
  try {
    const std::string uuid = UuidOf(name);
    Require(uuid == overlay_.uuid, "its uuid is ", uuid, ", but ", overlay_.uuid, " was packaged");
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
  loaded_.emplace(LoadRun(device, kernel_, words,
                          Concat("an instruction buffer of ", words.size_bytes(), " bytes"),
                          memory));
  Tally::OfProcess().streams_dropped += memory.dropped() - dropped;
}

void XrtOtherStream::Run(size_t begin, size_t end, std::span<Buffer* const> buffers) {
  if (!loaded_->run) {
    throw DeviceError(Fault::kRunError, Concat("the run on ", overlay_.path, " has failed"));
  }
  if (begin < end) {
    const auto [first, last] = WholeLines(begin, end, loaded_->words.size());
    loaded_->instructions.ToDevice(first * sizeof(uint32_t), (last - first) * sizeof(uint32_t));
  }
  for (size_t i = 0; i < buffers.size(); ++i) loaded_->Bind(i, *buffers[i]);
  try {
    const std::optional<Aborted> aborted = Execute(loaded_->run, "fused decode");
    if (!aborted) return;
    std::string text = Concat("a run on the overlay ", overlay_.path, " ", aborted->text());
    if (aborted->operation != kNoOperation) {
      text += Concat("; it stopped at operation ", aborted->operation);
    }
    throw DeviceError(aborted->fault(), text);
  } catch (const DeviceError&) {
    // Only the end of the context guarantees that the run no longer writes to the buffers.
    loaded_->run = {};
    kernel_ = {};
    context_ = {};
    throw;
  }
}

}  // namespace ort_aie::npu_target
