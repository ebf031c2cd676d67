// Dequantised weights of a prompt.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>

#include "targets/npu/plan_memory.h"

namespace ort_aie::npu_target {

// Those of several projections of a plan at once, as many as there is room for: dequantisation has
// an overlay of its own, and the device changes to it and back each time.
class PromptWeights {
 public:
  explicit PromptWeights(Engine& engine) : engine_(engine) {}

  // W of a projection, and U where it is gated, as GEMM reads them.
  struct Place {
    DeviceMemory weights, up;
  };
  // Of the first of the steps, a projection of quantised weights; where they are not there, they
  // become so together with those of projections behind it. Nothing where its own are too many.
  std::optional<Place> Get(const PlanMemory& memory, std::span<const Step> steps);
  // Before the engine's scratch memory is taken for anything else.
  void Forget();

 private:
  bool Dequantise(const PlanMemory& memory, std::span<const Step> steps);

  Engine& engine_;
  uint64_t generation_ = 0;
  Engine::Scratch scratch_;
  std::map<const uint8_t*, int64_t> offsets_;  // by the blocks that they were
};

}  // namespace ort_aie::npu_target
