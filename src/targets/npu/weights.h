// Weights as the device reads them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "targets/npu/engine.h"

namespace ort_aie::npu_target {

// Out-features that the device computes: whole blocks, and enough of them. Those of no weights are
// zeros.
int64_t DeviceRows(int64_t n);
// The form that the device's kernels read: 2 bits become 4, which stand for the same weights.
WeightForm DeviceForm(WeightForm form);

struct Matrix {
  const uint8_t* blocks;  // that stay as they are
  int64_t n, k;
  WeightForm form;
};

// Weights on the device, in few buffers: pinned where they lie if they are what the device reads,
// else a copy, DeviceRows out-features in DeviceForm.
std::vector<DeviceMemory> PinWeights(Engine& engine, std::span<const Matrix> matrices);

// W, and U where the step is gated.
struct PinnedWeights {
  uint64_t generation;
  DeviceMemory weights, up;
};

class PlanMemory;

// The plan's, or without one those that the op keeps by itself.
PinnedWeights WeightsOf(Engine& engine, const PlanMemory* memory, const MatMulStep& step);

}  // namespace ort_aie::npu_target
