#include "targets/npu/plan_contents.h"

#include "targets/npu/schedule/attention.h"
#include "targets/npu/schedule/steps.h"
#include "targets/npu/weights.h"

namespace ort_aie::npu_target {
namespace {

bool IsOnDevice(const Engine& engine, const Step& step) {
  return HandlerOf(step).why_not(step, engine.overlays()) == Reason::kNone;
}

}  // namespace

PlanContents::PlanContents(Engine& engine, const Plan& plan, const ThreadPool& threads)
    : engine_(engine),
      plan_(plan),
      caches_(
          engine, plan,
          [&engine](const AttentionStep& step) {
            return IsOnDevice(engine, step) ? TokensTogether(engine.facts(), step) : 0;
          },
          threads) {}

void PlanContents::Refresh() { caches_.Refresh(); }

PlanMemory* PlanContents::memory() {
  if (memory_ == nullptr || memory_->generation() != engine_.generation()) {
    memory_ = nullptr;  // free it before the next is allocated
    memory_ = PlanMemory::Of(engine_, plan_);
    if (memory_ == nullptr) return nullptr;
    memory_->Pin(plan_, [this](const Step& step) { return IsOnDevice(engine_, step); });
  }
  return memory_.get();
}

WeightForm PlanContents::form() const { return DeviceForm(PlanMemory::Of(engine_, plan_).get()); }

WeightPlaces PlanContents::Weights(const MatMulStep& step) {
  return WeightsOf(engine_, memory(), step);
}

CachePlace PlanContents::Cache(const AttentionStep& step) {
  KvCopy& copy = caches_.Of(step);
  return {copy, &copy};
}

}  // namespace ort_aie::npu_target
