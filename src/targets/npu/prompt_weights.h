// Dequantised weights of a prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>

#include "targets/npu/batch.h"

namespace ort_aie::npu_target {

// Those of several projections of a plan at once, as many as there is room for: dequantisation has
// an overlay of its own, and the device changes to it and back each time.
class PromptWeights {
 public:
  // on_device(step): whether the device does that projection.
  PromptWeights(Engine& engine, std::function<bool(const Step& step)> on_device)
      : engine_(engine), on_device_(std::move(on_device)) {}

  // Whether there is room for a matrix of a projection.
  static bool HasRoom(const Engine& engine, const MatMulStep& step);

  // W of a projection, and U where it is gated, as GEMM reads them.
  struct Place {
    DeviceMemory weights, up;
  };
  // Of the first of the steps, a projection of quantised weights; where they will not be there,
  // they become so together with those of projections behind it.
  Place Get(const PlanMemory* memory, Batch& batch, std::span<const Step> steps);
  // Before the engine's scratch memory is taken for anything else, and when a batch has not run.
  void Forget();

 private:
  void Dequantise(const PlanMemory* memory, Batch& batch, std::span<const Step> steps);

  Engine& engine_;
  const std::function<bool(const Step& step)> on_device_;
  uint64_t generation_ = 0;
  Engine::Scratch scratch_;
  std::map<const uint8_t*, int64_t> offsets_;  // by the blocks that they were
};

}  // namespace ort_aie::npu_target
