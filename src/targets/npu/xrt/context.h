// A design in the hardware context of its overlay: its kernel, and the instruction buffers of the
// streams that it has run. Designs whose packages have the same xclbin share the hardware context.
// A change from one kernel to another then only loads a PDI.
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

// Not thread-safe.
class Context {
 public:
  // `sibling`, if not null, is the context of a package with the same xclbin. The streams of this
  // one share `memory`. Throws DeviceError: kWrongOverlay, kContextRefused, kDeviceLost.
  Context(xrt::device device, const Package& package, const Context* sibling,
          std::shared_ptr<npu::StreamMemory> memory);

  // The memory bank of the kernel's buffer arguments.
  xrt::memory_group group() const { return group_; }

  const xrt::hw_context& hardware() const { return context_; }
  bool has_lists() const { return streams_.manifest().generation != npu::kGenerationNpu1; }
  // The runs of a plan, with their buffers. They stay as they are until their stream is released.
  struct Loaded {
    const npu::InstructionStream& stream;
    std::vector<LoadedRun>& runs;
    uint64_t id;
  };
  // Throws DeviceError, and Error for a plan that the design cannot do.
  Loaded Hold(const npu::Invocations& plan, std::span<Buffer* const> buffers);
  void Release(uint64_t id) { streams_.memory().Release(id); }
  // Throws DeviceError for a run of a plan.
  [[noreturn]] void ThrowAborted(const Aborted& aborted, const npu::Run& run,
                                 const npu::Invocations& plan) const;

 private:
  // What is kept with a stream.
  struct Kept : npu::StreamCompanion {
    explicit Kept(size_t bytes) : counted(bytes) {}

    const CountedStream counted;
    std::vector<LoadedRun> dispatches;
  };

  // The stream of a plan, on the device.
  npu::StreamCache::Lookup Get(const npu::Invocations& plan, size_t buffers);
  Kept& Keep(const npu::StreamCache::Lookup& lookup, const npu::Invocations& plan);
  std::unique_ptr<Kept> Load(const npu::InstructionStream& stream, const npu::Invocations& plan);
  void Patch(Kept& kept, const npu::StreamCache::Lookup& lookup);

  xrt::device device_;
  xrt::hw_context context_;
  xrt::kernel kernel_;
  xrt::memory_group group_ = 0;
  npu::StreamCache streams_;  // with what is kept for each, which is destroyed before the context
};

}  // namespace ort_aie::npu_target
