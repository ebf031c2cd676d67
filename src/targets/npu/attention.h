// Attention on the device.
#pragma once

#include "targets/npu/batch.h"

namespace ort_aie::npu_target {

inline constexpr const char kFlowKv[] = "flow_kv";
inline constexpr const char kFlowQkv[] = "flow_qkv";

// Why the host has to do a step; empty where the device can.
std::string WhyNotAttention(Engine& engine, const AttentionStep& step);

// The overlay for a step of one query row.
const char* AttentionDesign(Engine& engine);

// Adds a step of one query row. Queries, keys and values that an earlier step of the batch leaves
// on the device are normalised, rotated and appended there, and the new rows of the present come
// back from it; those of the host are prepared by the host, which writes the present before. False,
// and no change, if the batch has to run first. `step` and `threads` live until it
// has.
bool AppendAttention(Engine& engine, Batch& batch, const char* design, const AttentionStep& step,
                     const ThreadPool& threads);

// A step of several query rows. What a prompt that is shorter than others has as padding gets
// zeros.
void AttendPrompt(Engine& engine, const AttentionStep& step, const ThreadPool& threads);

}  // namespace ort_aie::npu_target
