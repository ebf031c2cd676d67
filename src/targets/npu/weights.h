// Weights as the device reads them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "targets/npu/engine.h"
#include "targets/npu/schedule/device_contents.h"

namespace ort_aie::npu_target {

class PlanMemory;

// The form of Q4NX in which the device has the weights of a plan with such memory, or of an op
// without a plan's: the shipping one.
WeightForm DeviceForm(const PlanMemory* memory);

struct Matrix {
  const uint8_t* blocks;  // must not change
  int64_t n, k;
  WeightForm form;
};

// Whether the device reads a matrix where the host has it.
bool IsReadInPlace(const Matrix& matrix, const PlanMemory* memory);

// Puts weights on the device, in few buffers. They are pinned in place if the device can read them
// as they are; else they are copied, as DeviceRows out-features, widened to DeviceForm if that
// holds them.
std::vector<DeviceMemory> PinWeights(Engine& engine, const PlanMemory* memory,
                                     std::span<const Matrix> matrices);

// What an op keeps without a plan's memory.
struct PinnedWeights {
  uint64_t generation;
  WeightPlaces places;
};

// The plan's, or, without a plan's memory, those that the op keeps by itself.
WeightPlaces WeightsOf(Engine& engine, const PlanMemory* memory, const MatMulStep& step);

}  // namespace ort_aie::npu_target
