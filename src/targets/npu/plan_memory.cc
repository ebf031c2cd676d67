#include "targets/npu/plan_memory.h"

#include <utility>
#include <vector>

#include "base/error.h"
#include "targets/npu/fused_decode/token_memory.h"
#include "targets/npu/kv_copies.h"
#include "targets/npu/weights.h"

namespace ort_aie::npu_target {

std::shared_ptr<PlanMemory> PlanMemory::Of(Engine& engine, const Plan& plan) {
  if (plan.kept == nullptr) return nullptr;
  const std::lock_guard lock(plan.kept->mutex);
  auto memory = std::static_pointer_cast<PlanMemory>(plan.kept->object);
  if (memory == nullptr || memory->generation_ != engine.generation()) {
    plan.kept->object = nullptr;  // free it before the next is made
    memory = nullptr;
    memory = std::make_shared<PlanMemory>(engine, FormOfPlan(engine.facts(), plan));
    plan.kept->object = memory;
  }
  return memory;
}

void PlanMemory::Pin(const Plan& plan, const std::function<bool(const Step&)>& on_device) {
  std::vector<Matrix> matrices;
  const std::lock_guard lock(mutex_);
  for (const Step& step : plan.steps) {
    const auto* projection = std::get_if<MatMulStep>(&step);
    if (projection == nullptr) continue;
    for (const uint8_t* blocks : {projection->weights, projection->up_weights}) {
      if (blocks == nullptr || weights_.contains(blocks) || !on_device(step)) continue;
      matrices.push_back({blocks, projection->n, projection->k, projection->form});
    }
  }
  if (matrices.empty()) return;
  std::vector<DeviceMemory> pinned = PinWeights(engine_, this, matrices);
  for (size_t i = 0; i < matrices.size(); ++i) weights_[matrices[i].blocks] = std::move(pinned[i]);
}

DeviceMemory PlanMemory::Weights(const uint8_t* blocks) const {
  const std::lock_guard lock(mutex_);
  const auto found = weights_.find(blocks);
  Require(found != weights_.end(), "a plan's weights are not on the device");
  return found->second;
}

std::shared_ptr<KvCopies> PlanMemory::caches() {
  const std::lock_guard lock(mutex_);
  if (caches_ == nullptr) caches_ = std::make_shared<KvCopies>();
  return caches_;
}

std::shared_ptr<TokenMemory> PlanMemory::tokens(const fused_decode::Package& package) {
  const std::lock_guard lock(mutex_);
  if (tokens_ == nullptr || &tokens_->package() != &package) {
    tokens_ = nullptr;  // free it before the next is made
    tokens_ = std::make_shared<TokenMemory>(engine_, package);
  }
  return tokens_;
}

PlanMemory::Activations PlanMemory::TakeActivations(size_t first, size_t bytes,
                                                    std::vector<int64_t> layout) {
  {
    const std::lock_guard lock(mutex_);
    const auto idle = activations_.find(first);
    if (idle != activations_.end()) {
      Activations activations = std::move(idle->second);
      activations_.erase(idle);
      if (activations.layout == layout && activations.buffer->size() == bytes) return activations;
    }
  }
  return {engine_.device().Allocate(bytes), std::move(layout), false};
}

void PlanMemory::PutBack(size_t first, Activations activations) {
  const std::lock_guard lock(mutex_);
  if (generation_ == engine_.generation()) activations_.emplace(first, std::move(activations));
}

}  // namespace ort_aie::npu_target
