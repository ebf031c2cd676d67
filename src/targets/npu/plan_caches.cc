#include "targets/npu/plan_caches.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ort_aie::npu_target {
namespace {

template <typename State>
std::shared_ptr<State> StateOf(const std::shared_ptr<KeptState>& kept) {
  if (kept == nullptr) return std::make_shared<State>();
  const std::lock_guard lock(kept->mutex);
  if (kept->object == nullptr) kept->object = std::make_shared<State>();
  return std::static_pointer_cast<State>(kept->object);
}

}  // namespace

PlanCaches::PlanCaches(Engine& engine, const Plan& plan, KvSlab::Tokens tokens,
                       const ThreadPool& threads)
    : engine_(engine), tokens_(std::move(tokens)), threads_(threads) {
  for (const Step& any : plan.steps) {
    const auto* step = std::get_if<AttentionStep>(&any);
    if (step == nullptr) continue;
    if (plan.kept == nullptr) {
      groups_.push_back({StateOf<KvCopies>(step->kept), {step}, nullptr});
    } else {
      if (groups_.empty()) {
        const std::shared_ptr<PlanState> state = StateOf<PlanState>(plan.kept);
        groups_.push_back({{state, &state->copies}, {}, nullptr});
      }
      groups_.back().steps.push_back(step);
    }
  }
}

KvCopy& PlanCaches::Of(const AttentionStep& step) {
  for (Group& group : groups_) {
    const auto found = std::ranges::find(group.steps, &step);
    if (found == group.steps.end()) continue;
    const auto i = static_cast<size_t>(found - group.steps.begin());
    bool known = false;
    if (group.slab == nullptr || group.slab->generation() != engine_.generation()) {
      group.slab = nullptr;
      KvCopies::Taken taken = group.copies->Take(engine_, group.steps, i, threads_);
      taken.slab->Reserve(group.steps, tokens_);
      group.slab = std::move(taken.slab);
      known = taken.known;
    }
    KvCopy& copy = group.slab->layer(i);
    copy.Keep(step, known, threads_);
    return copy;
  }
  Fail(ErrorCode::kRuntime, "an attention step of another plan");
}

void PlanCaches::PutBack() {
  for (Group& group : groups_) {
    if (group.slab != nullptr) group.copies->PutBack(engine_, std::move(group.slab));
  }
}

}  // namespace ort_aie::npu_target
