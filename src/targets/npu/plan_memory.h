// What a plan of several steps keeps on the device between calls: in few buffers, because a run can
// have only five.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "targets/npu/engine.h"
#include "targets/npu/fused_decode/package.h"

namespace ort_aie::npu_target {

class KvCopies;
class TokenMemory;

// Thread-safe. Its content belongs to one generation of the engine.
class PlanMemory {
 public:
  // The weights of the plan are in `form` on the device.
  PlanMemory(Engine& engine, const WeightForm& form)
      : engine_(engine), generation_(engine.generation()), form_(form) {}

  // The plan's memory, made anew after a fault of the device; null for the plan of an op by itself.
  static std::shared_ptr<PlanMemory> Of(Engine& engine, const Plan& plan);

  // Pins the weights of the steps that the device does: all that are not pinned yet, together.
  void Pin(const Plan& plan, const std::function<bool(const Step&)>& on_device);
  // The weights of a step. Throws Error unless they were pinned.
  DeviceMemory Weights(const uint8_t* blocks) const;
  bool Has(const uint8_t* blocks) const {
    const std::lock_guard lock(mutex_);
    return weights_.contains(blocks);
  }
  uint64_t generation() const { return generation_; }
  const WeightForm& form() const { return form_; }

  // The copies of all layers' KV caches; made on demand.
  std::shared_ptr<KvCopies> caches();

  // The memory of the whole decoder on a package's overlay, for one package at a time; made on
  // demand.
  std::shared_ptr<TokenMemory> tokens(const fused_decode::Package& package);

  // The rows of the batch that begins with a step. They belong to one call until they are put back.
  struct Activations {
    std::shared_ptr<Buffer> buffer;
    std::vector<int64_t> layout;  // the places of its contents, as the batch counts them
    bool sent = false;            // the device has the content of the host's part
  };
  Activations TakeActivations(size_t first, size_t bytes, std::vector<int64_t> layout);
  void PutBack(size_t first, Activations activations);

 private:
  Engine& engine_;
  const uint64_t generation_;
  const WeightForm form_;
  mutable std::mutex mutex_;
  std::unordered_map<const uint8_t*, DeviceMemory> weights_;
  std::shared_ptr<KvCopies> caches_;
  std::shared_ptr<TokenMemory> tokens_;
  std::multimap<size_t, Activations> activations_;  // unused ones, by their first steps
};

}  // namespace ort_aie::npu_target
