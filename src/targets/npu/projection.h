// Projections on the device.
#pragma once

#include "targets/npu/batch.h"
#include "targets/npu/prompt_weights.h"

namespace ort_aie::npu_target {

// Adds a step of one row. False, and no change, if the batch has to run first. `memory` is the
// plan's, or null.
bool AppendProjection(Engine& engine, const PlanMemory* memory, Batch& batch, const char* design,
                      const MatMulStep& step);

// Of several rows: dequantisation, where the form of the weights needs it, and GEMM, whose B is in
// the order of bf16 blocks.

// Whether a step of a plan with such temporaries is too large to be part of a batch.
bool IsLarge(const Engine& engine, const Arena& temporaries, const MatMulStep& step);
// As AppendProjection: the first of the steps, which is not large.
bool AppendPromptProjection(Engine& engine, const PlanMemory* memory, PromptWeights& prompt,
                            Batch& batch, std::span<const Step> steps);
// By itself, in bands of out-features and rows that there is room for.
void ProjectLarge(Engine& engine, const PlanMemory* memory, PromptWeights& prompt,
                  const MatMulStep& step, const ThreadPool& threads);

// Out-features [n0, n0 + count) of a row from products of the device, and what follows them; `up`
// is read where the step is gated.
void StoreProducts(const host::Kernels& kernels, const MatMulStep& step, int64_t row, int64_t n0,
                   int64_t count, const uint16_t* product, const uint16_t* up);

}  // namespace ort_aie::npu_target
