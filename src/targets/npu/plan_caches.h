// The device's copies of KV caches during the execution of a plan.
#pragma once

#include <memory>
#include <vector>

#include "targets/npu/kv_copies.h"

namespace ort_aie::npu_target {

// Finds the copy of each attention step's layer. All layers of a program share a slab; a step of a
// plan for which nothing is kept has its own.
class PlanCaches {
 public:
  // `tokens`: how many tokens of a step are processed at a time; 0: the device does not do the
  // step.
  PlanCaches(Engine& engine, const Plan& plan, KvSlab::Tokens tokens, const ThreadPool& threads);

  // Gives up the copies of an old generation, before steps begin. Steps that are running keep
  // theirs, because a fault in another thread does not affect them.
  void Refresh();
  // The copy for a step of the plan, which still has what it held of the past. It is valid until
  // Refresh.
  KvCopy& Of(const AttentionStep& step);
  // Call this when the plan is done.
  void PutBack();

 private:
  struct Group {
    std::vector<const AttentionStep*> steps;
    std::shared_ptr<KvCopies> copies = nullptr;  // where the slab came from
    std::unique_ptr<KvSlab> slab = nullptr;
  };
  std::shared_ptr<KvCopies> CopiesOf(const AttentionStep& step) const;

  Engine& engine_;
  const Plan& plan_;
  const KvSlab::Tokens tokens_;
  const ThreadPool& threads_;
  std::vector<Group> groups_;
};

}  // namespace ort_aie::npu_target
