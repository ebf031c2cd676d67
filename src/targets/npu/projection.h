// Projections on the device.
#pragma once

#include "targets/npu/batch.h"

namespace ort_aie::npu_target {

// The overlay for a token's steps, or for its projections alone on a device without room for it.
inline constexpr const char kDecode[] = "decode";
inline constexpr const char kFusedDqp[] = "fused_dqp";
inline constexpr const char kDequant[] = "dequant";
inline constexpr const char kGemm[] = "gemm";

// Why the host has to do a step; empty where the device can.
std::string WhyNotProjection(Engine& engine, const MatMulStep& step);

// The overlay for a step of one row.
const char* ProjectionDesign(Engine& engine);

// Adds a step of one row. False, and no change, if the batch has to run first.
bool AppendProjection(Engine& engine, Batch& batch, const char* design, const MatMulStep& step);

// A step of several rows: dequantisation and GEMM.
void ProjectPrompt(Engine& engine, const MatMulStep& step, const ThreadPool& threads);

}  // namespace ort_aie::npu_target
