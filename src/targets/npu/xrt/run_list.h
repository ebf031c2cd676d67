// A list of runs of several designs that share a hardware context. Each run has its kernel: the
// driver's chains name one for each command (aie2_cmdlist_fill_cf in xdna-driver's aie2_message.c),
// and a run of another kernel than the one before loads that kernel's PDI.
#pragma once

#include <xrt/experimental/xrt_kernel.h>

#include <cstdint>
#include <span>
#include <vector>

#include "npu/stream.h"
#include "targets/npu/xrt/context.h"

namespace ort_aie::npu_target {

class RunList {
 public:
  // The contexts whose plans are added share `hardware`.
  explicit RunList(const xrt::hw_context& hardware) : list_(hardware) {}
  RunList(const RunList&) = delete;
  RunList& operator=(const RunList&) = delete;
  ~RunList();

  // Adds the runs of a plan, which must live until they are executed. Executes what is in the list
  // before, if there is no room for more. Throws as Context::Run does.
  void Add(Context& context, const npu::Invocations& plan, std::span<Buffer* const> buffers);
  // Executes what is in the list, and waits for its end.
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

  xrt::runlist list_;
  npu::ListRoom room_;
  std::vector<Held> held_;
  std::vector<Listed> runs_;
};

}  // namespace ort_aie::npu_target
