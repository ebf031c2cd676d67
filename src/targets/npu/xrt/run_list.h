// Runs of designs that share a hardware context, executed one after the other: in lists, where the
// device has them. Each run has its kernel: the driver's chains name one for each command
// (aie2_cmdlist_fill_cf in xdna-driver's aie2_message.c), and a run of another kernel than the one
// before loads that kernel's PDI.
#pragma once

#include <xrt/experimental/xrt_kernel.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "npu/stream.h"
#include "targets/npu/xrt/context.h"

namespace ort_aie::npu_target {

class RunList {
 public:
  RunList() = default;
  RunList(const RunList&) = delete;
  RunList& operator=(const RunList&) = delete;
  ~RunList();

  // Adds the runs of a plan, which must live until they are executed. All contexts share their
  // hardware. Executes what is there before, if there is no room for more. Throws DeviceError, then
  // the contexts cannot be used any more, and Error for a plan that the design cannot do.
  void Add(Context& context, const npu::Invocations& plan, std::span<Buffer* const> buffers);
  // Executes what is there, and waits for the end.
  void Execute();

 private:
  struct Held {
    Context* context;
    uint64_t stream;
  };
  struct Listed {
    const Context* context;
    const npu::Run* run;
    const npu::Invocations* plan;
    xrt::run loaded;
  };
  Context::Loaded Hold(Context& context, const npu::Invocations& plan,
                       std::span<Buffer* const> buffers);
  void ReleaseAll();

  std::optional<xrt::runlist> list_;
  npu::ListRoom room_;
  std::vector<Held> held_;
  std::vector<Listed> runs_;
};

}  // namespace ort_aie::npu_target
