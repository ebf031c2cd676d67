#include "targets/npu/xrt/run_list.h"

#include <algorithm>
#include <string>

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
    if (!runs_.empty() && !(context.has_lists() && room_.Fits(run.predicted_seconds))) {
      held_.pop_back();
      Execute();
      held_.push_back(own);
    }
    room_.Add(run.predicted_seconds);
    runs_.push_back({&context, &run, &plan, loaded.runs[i].run});
  }
}

void RunList::Execute() {
  if (runs_.empty()) return;
  const std::string& name = runs_.front().plan->front().sequence;
  const auto fail = [](const Listed& at, const Aborted& aborted) {
    at.context->ThrowAborted(aborted, *at.run, *at.plan);
  };
  if (runs_.size() == 1) {
    const auto aborted = npu_target::Execute(runs_.front().loaded, name);
    if (aborted) fail(runs_.front(), *aborted);
  } else {
    Ask(Fault::kRunError, "a list of runs", [&] {
      if (!list_) list_.emplace(runs_.front().context->hardware());
      for (const Listed& one : runs_) list_->add(one.loaded);
    });
    const auto failed = npu_target::Execute(*list_, runs_.size(), name);
    if (failed) {
      const auto same = [&](const Listed& one) {
        return failed->run && one.loaded.get_handle() == failed->run.get_handle();
      };
      const auto found = std::ranges::find_if(runs_, same);
      fail(found == runs_.end() ? runs_.front() : *found, failed->aborted);
    }
    Ask(Fault::kRunError, "a list of runs", [&] { list_->reset(); });
  }
  runs_.clear();
  room_ = {};
  ReleaseAll();
}

}  // namespace ort_aie::npu_target
