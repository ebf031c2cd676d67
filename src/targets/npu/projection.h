// Projections on the device.
#pragma once

#include "targets/npu/batch.h"
#include "targets/npu/prompt_weights.h"

namespace ort_aie::npu_target {

// Adds a step of one row. False, and no change, if the batch has to run first. `memory` is the
// plan's, or null.
bool AppendProjection(Engine& engine, const PlanMemory* memory, Batch& batch, const char* design,
                      const MatMulStep& step);

// The first of the steps, a projection of several rows: dequantisation, where the form of the
// weights needs it, and GEMM, whose B is in the order of bf16 blocks.
void ProjectPrompt(Engine& engine, const PlanMemory* memory, PromptWeights& prompt,
                   std::span<const Step> steps, const ThreadPool& threads);

}  // namespace ort_aie::npu_target
