#include "targets/npu/xrt/run_list.h"

#include <algorithm>

#include "targets/npu/xrt/faults.h"
#include "targets/npu/xrt/runs.h"

namespace ort_aie::npu_target {

RunList::~RunList() { ReleaseAll(); }

void RunList::ReleaseAll() {
  for (const Held& one : held_) one.context->Release(one.stream);
  held_.clear();
}

Context::Loaded RunList::Hold(Context& context, const npu::Invocations& plan,
                              std::span<Buffer* const> buffers) {
  try {
    return context.Hold(plan, buffers);
  } catch (const npu::NoRoomForStream&) {
    if (runs_.empty()) throw;
  }
  Execute();
  return context.Hold(plan, buffers);
}

void RunList::Add(Context& context, const npu::Invocations& plan,
                  std::span<Buffer* const> buffers) {
  const Context::Loaded loaded = Hold(context, plan, buffers);
  const Held own{&context, loaded.id};
  held_.push_back(own);
  for (size_t i = 0; i < loaded.runs.size(); ++i) {
    const npu::Run& run = loaded.stream.runs[i];
    if (!room_.Fits(run.predicted_seconds)) {
      held_.pop_back();
      Execute();
      held_.push_back(own);
    }
    Ask(Fault::kRunError, "a list of runs", [&] { list_.add(loaded.runs[i].run); });
    room_.Add(run.predicted_seconds);
    runs_.push_back({&context, &run, &plan, loaded.runs[i].run});
  }
}

void RunList::Execute() {
  if (runs_.empty()) return;
  const auto failed =
      npu_target::Execute(list_, runs_.size(), runs_.front().plan->front().sequence);
  if (failed) {
    const auto same = [&](const Listed& one) {
      return failed->run && one.loaded.get_handle() == failed->run.get_handle();
    };
    const auto found = std::ranges::find_if(runs_, same);
    const Listed& at = found == runs_.end() ? runs_.front() : *found;
    at.context->ThrowAborted(failed->aborted, *at.run, *at.plan);
  }
  Ask(Fault::kRunError, "a list of runs", [&] { list_.reset(); });
  runs_.clear();
  room_ = {};
  ReleaseAll();
}

}  // namespace ort_aie::npu_target
