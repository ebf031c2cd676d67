#include "targets/npu/plan_caches.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "targets/npu/plan_memory.h"

namespace ort_aie::npu_target {

PlanCaches::PlanCaches(Engine& engine, const Plan& plan, KvSlab::Tokens tokens,
                       const ThreadPool& threads)
    : engine_(engine), plan_(plan), tokens_(std::move(tokens)), threads_(threads) {
  for (const Step& any : plan.steps) {
    const auto* step = std::get_if<AttentionStep>(&any);
    if (step == nullptr) continue;
    if (plan.kept == nullptr || groups_.empty()) groups_.push_back({});
    groups_.back().steps.push_back(step);
  }
}

std::shared_ptr<KvCopies> PlanCaches::CopiesOf(const AttentionStep& step) const {
  if (const auto memory = PlanMemory::Of(engine_, plan_)) return memory->caches();
  if (step.kept == nullptr) return std::make_shared<KvCopies>();
  const std::lock_guard lock(step.kept->mutex);
  if (step.kept->object == nullptr) step.kept->object = std::make_shared<KvCopies>();
  return std::static_pointer_cast<KvCopies>(step.kept->object);
}

void PlanCaches::Refresh() {
  for (Group& group : groups_) {
    if (group.slab != nullptr && group.slab->generation() != engine_.generation()) {
      group.slab = nullptr;
    }
  }
}

KvCopy& PlanCaches::Of(const AttentionStep& step) {
  for (Group& group : groups_) {
    const auto found = std::ranges::find(group.steps, &step);
    if (found == group.steps.end()) continue;
    const auto i = static_cast<size_t>(found - group.steps.begin());
    bool known = false;
    if (group.slab == nullptr) {
      group.copies = CopiesOf(step);
      KvCopies::Taken taken = group.copies->Take(engine_, group.steps, i, threads_);
      taken.slab->Reserve(group.steps, tokens_);
      group.slab = std::move(taken.slab);
      known = taken.known;
    }
    KvCopy& copy = group.slab->layer(i);
    copy.Keep(step, known, threads_);
    return copy;
  }
  Fail(ErrorCode::kRuntime, "the attention step belongs to another plan");
}

void PlanCaches::PutBack() {
  for (Group& group : groups_) {
    if (group.slab != nullptr) group.copies->PutBack(engine_, std::move(group.slab));
  }
}

}  // namespace ort_aie::npu_target
