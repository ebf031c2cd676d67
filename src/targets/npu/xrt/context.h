// A design in the hardware context of its overlay: its kernel, and the instruction buffers of the
// streams that it was asked for. Designs whose packages have one xclbin share the hardware context,
// where a change from one kernel to another loads a PDI and no more.
#pragma once

#include <xrt/experimental/xrt_kernel.h>
#include <xrt/xrt_device.h>
#include <xrt/xrt_hw_context.h>
#include <xrt/xrt_kernel.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "npu/stream_cache.h"
#include "targets/npu/xrt/buffers.h"
#include "targets/npu/xrt/overlays.h"
#include "targets/npu/xrt/runs.h"

namespace ort_aie::npu_target {

// Not for several threads at once.
class Context {
 public:
  // `sibling`, if there is one, is of a package with the same xclbin. Its streams share `memory`.
  // Throws DeviceError: kWrongOverlay, kContextRefused, kDeviceLost.
  Context(xrt::device device, const Package& package, const Context* sibling,
          std::shared_ptr<npu::StreamMemory> memory);

  // The bank of the kernel's buffer arguments.
  xrt::memory_group group() const { return group_; }

  // Executes a plan on its buffers and waits for its end. Throws DeviceError; then the context is
  // of no use any more. Throws Error for a plan that the design cannot do.
  void Run(const npu::Plan& plan, std::span<Buffer* const> buffers);

 private:
  // Of dispatches [begin, end), executed as one. XRT hands to the driver, which pins them and waits
  // for them, the buffers that a run has when it is added.
  struct Chain {
    size_t begin, end;
    xrt::runlist list;
    bool filled = false;
  };
  // Of a stream, for as long as it is kept.
  struct Kept : npu::StreamCompanion {
    explicit Kept(size_t bytes) : counted(bytes) {}

    const CountedStream counted;
    std::vector<LoadedRun> dispatches;
    std::vector<Chain> chains;  // none: the dispatches go one after the other
  };

  Kept& Keep(const npu::StreamCache::Lookup& lookup, const npu::Plan& plan);
  std::unique_ptr<Kept> Load(const npu::Stream& stream, const npu::Plan& plan);
  void Patch(Kept& kept, const npu::StreamCache::Lookup& lookup);
  // Divides the dispatches into chains, where that is not as it was.
  void Divide(Kept& kept, const npu::Stream& stream);
  // Sets what is not set yet, or to another buffer, and fills anew the lists of such runs.
  void Bind(Kept& kept, const npu::Stream& stream, std::span<Buffer* const> buffers);
  void Execute(LoadedRun& dispatch, const npu::Run& run, const npu::Plan& plan);
  void Execute(Chain& chain, const Kept& kept, const npu::Stream& stream, const npu::Plan& plan);
  [[noreturn]] void ThrowAborted(const Aborted& aborted, const npu::Run& run,
                                 const npu::Plan& plan) const;

  xrt::device device_;
  xrt::hw_context context_;
  xrt::kernel kernel_;
  xrt::memory_group group_ = 0;
  npu::StreamCache streams_;  // with what is kept of them, which goes before the context
};

}  // namespace ort_aie::npu_target
