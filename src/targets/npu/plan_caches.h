// The device's copies of KV caches while a plan is executed.
#pragma once

#include <memory>
#include <vector>

#include "targets/npu/kv_copies.h"

namespace ort_aie::npu_target {

// Finds the copy of each attention step's layer: all layers of a program share a slab; a step of a
// plan that nothing is kept of has its own.
class PlanCaches {
 public:
  // `tokens`: how many of a step's are worked on at a time; 0: the device does not do the step.
  PlanCaches(Engine& engine, const Plan& plan, KvSlab::Tokens tokens, const ThreadPool& threads);

  // Gives up the copies of a generation that is gone, before steps begin: those that are under way
  // keep theirs, which a fault of another thread's does not touch.
  void Refresh();
  // The copy for a step of the plan, which has kept what it had of the past. It stays until
  // Refresh.
  KvCopy& Of(const AttentionStep& step);
  // When the plan is done.
  void PutBack();

 private:
  struct Group {
    std::vector<const AttentionStep*> steps;
    std::shared_ptr<KvCopies> copies = nullptr;  // where the slab is from
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
