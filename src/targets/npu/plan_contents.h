// What a plan has on the device during a call: weights, copies of KV caches, a prompt's scratch
// memory. It is put there when the scheduler asks where it is.
#pragma once

#include <memory>

#include "targets/npu/engine.h"
#include "targets/npu/plan_caches.h"
#include "targets/npu/plan_memory.h"
#include "targets/npu/schedule/device_contents.h"

namespace ort_aie::npu_target {

class PlanContents final : public DeviceContents {
 public:
  PlanContents(Engine& engine, const Plan& plan, const ThreadPool& threads);

  // Before a stage: gives up what a fault of the device has lost.
  void Refresh();
  // The memory that the plan keeps, with all of its weights; null for an op by itself.
  PlanMemory* memory();
  // Call this when the plan is done.
  void PutBack() { caches_.PutBack(); }

  WeightForm form() const override;
  uint64_t generation() const override { return engine_.generation(); }
  WeightPlaces Weights(const MatMulStep& step) override;
  CachePlace Cache(const AttentionStep& step) override;
  ScratchBuffers TakeScratch(size_t bytes, bool both, ScratchBuffers before) override {
    return engine_.TakeScratch(bytes, both, std::move(before));
  }

 private:
  Engine& engine_;
  const Plan& plan_;
  PlanCaches caches_;
  std::shared_ptr<PlanMemory> memory_;
};

}  // namespace ort_aie::npu_target
