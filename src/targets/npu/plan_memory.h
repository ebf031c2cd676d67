// What a plan of several steps has on the device from call to call: in few buffers, for a run can
// have five.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "targets/npu/engine.h"

namespace ort_aie::npu_target {

class KvCopies;

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

  // The copies of all layers' KV caches; made on demand.
  std::shared_ptr<KvCopies> caches();

 private:
  Engine& engine_;
  const uint64_t generation_;
  mutable std::mutex mutex_;
  std::unordered_map<const uint8_t*, DeviceMemory> weights_;
  std::shared_ptr<KvCopies> caches_;
};

}  // namespace ort_aie::npu_target
