// Projections on the device.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "targets/host/kernels/kernels.h"
#include "targets/npu/schedule/scheduling.h"

namespace ort_aie::npu_target {

// Adds a step of one row. Returns false, and changes nothing, if the batch has to run first.
bool AppendProjection(Scheduling& scheduling, Batch& batch, Design design, const MatMulStep& step);

// Whether the device does all that follows the products of a step without a bias: nothing, or the
// gate of an MLP.
bool FinishesThere(const MatMulStep& step);

// For several rows: dequantisation, if the form of the weights needs it, and GEMM, whose B is in
// the order of bf16 blocks.

// Whether a step of a plan with such temporaries is too large for a batch.
bool IsLarge(const DeviceFacts& facts, const Arena& temporaries, const MatMulStep& step);
// As AppendProjection, for the first of `steps`, which must not be large.
bool AppendPromptProjection(Scheduling& scheduling, Batch& batch, std::span<const Step> steps);
// The batches of a large step alone, in bands of out-features and rows for which there is room.
void ProjectLarge(Scheduling& scheduling, const MatMulStep& step, Stage& stage);

// Takes products of the device for out-features [n0, n0 + count) of a row, applies the work after
// them, and stores the results. `up` is read if the step is gated.
void StoreProducts(const host::Kernels& kernels, const MatMulStep& step, int64_t row, int64_t n0,
                   int64_t count, const uint16_t* product, const uint16_t* up);

}  // namespace ort_aie::npu_target
