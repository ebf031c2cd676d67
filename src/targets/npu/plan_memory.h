// What a plan of several steps has on the device from call to call: in few buffers, for a run can
// have five.
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

// For several threads at once. What it holds is of one generation of the engine.
class PlanMemory {
 public:
  explicit PlanMemory(Engine& engine) : engine_(engine), generation_(engine.generation()) {}

  // The plan's, made anew after a fault of the device; null for the plan of an op by itself.
  static std::shared_ptr<PlanMemory> Of(Engine& engine, const Plan& plan);

  // Pins the weights of the steps that the device does, all that are not there yet together.
  void Pin(const Plan& plan, const std::function<bool(const Step&)>& on_device);
  // Those of a step. Throws Error unless they were pinned.
  DeviceMemory Weights(const uint8_t* blocks) const;
  bool Has(const uint8_t* blocks) const {
    const std::lock_guard lock(mutex_);
    return weights_.contains(blocks);
  }
  uint64_t generation() const { return generation_; }

  // The copies of all layers' KV caches; made on demand.
  std::shared_ptr<KvCopies> caches();

  // What the whole decoder has on the overlay of a package: of one at a time, made on demand.
  std::shared_ptr<TokenMemory> tokens(const fused_decode::Package& package);

  // Rows of the batch that begins with a step: one call's, until they are put back.
  struct Activations {
    std::shared_ptr<Buffer> buffer;
    std::vector<int64_t> layout;  // what lies where, as the batch counts it
    bool sent = false;            // what the host's side holds is on the device
  };
  Activations TakeActivations(size_t first, size_t bytes, std::vector<int64_t> layout);
  void PutBack(size_t first, Activations activations);

 private:
  Engine& engine_;
  const uint64_t generation_;
  mutable std::mutex mutex_;
  std::unordered_map<const uint8_t*, DeviceMemory> weights_;
  std::shared_ptr<KvCopies> caches_;
  std::shared_ptr<TokenMemory> tokens_;
  std::multimap<size_t, Activations> activations_;  // that nobody uses, by their first steps
};

}  // namespace ort_aie::npu_target
