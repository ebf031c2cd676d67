// Projections on the device.
#pragma once

#include "targets/npu/batch.h"

namespace ort_aie::npu_target {

// Adds a step of one row. False, and no change, if the batch has to run first.
bool AppendProjection(Engine& engine, Batch& batch, const char* design, const MatMulStep& step);

// A step of several rows: dequantisation and GEMM.
void ProjectPrompt(Engine& engine, const MatMulStep& step, const ThreadPool& threads);

}  // namespace ort_aie::npu_target
