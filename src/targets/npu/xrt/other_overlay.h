// An overlay that others built, in its own hardware context, with a stream of words.
#pragma once

#include <xrt/experimental/xrt_kernel.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_hw_context.h>
#include <xrt/xrt_kernel.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "npu/stream_cache.h"
#include "targets/npu/device.h"
#include "targets/npu/xrt/buffers.h"
#include "targets/npu/xrt/runs.h"

namespace ort_aie::npu_target {

// Not thread-safe.
class XrtOtherStream final : public OtherStream {
 public:
  // Its words are in the same memory as `memory`'s streams; the oldest of these make room for them.
  // Throws DeviceError: kWrongOverlay, kContextRefused, kAllocation, kDeviceLost.
  XrtOtherStream(xrt::device device, const OtherOverlay& overlay, std::span<const uint32_t> words,
                 npu::StreamMemory& memory);

  // The memory bank of the kernel's buffer arguments.
  xrt::memory_group group() const { return group_; }

  std::span<uint32_t> words() override { return loaded_->words; }
  void Run(size_t begin, size_t end, std::span<Buffer* const> buffers) override;

 private:
  const OtherOverlay overlay_;
  xrt::hw_context context_;
  xrt::kernel kernel_;
  xrt::memory_group group_ = 0;
  const CountedStream counted_;
  std::optional<LoadedRun> loaded_;  // always has a value; its run is null after a failure
};

}  // namespace ort_aie::npu_target
