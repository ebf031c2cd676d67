// Attention on the device.
#pragma once

#include "targets/npu/batch.h"
#include "targets/npu/plan_caches.h"

namespace ort_aie::npu_target {

// How many of a step's tokens are processed together: one, or a prompt's chunk.
int64_t TokensAtATime(const Engine& engine, const AttentionStep& step);

// Whether queries, keys and values on the device have to go to the host and back before attention,
// because no sequence of `design` prepares them.
bool HostPrepares(const AttentionStep& step, const char* design);

// Whether everything but the new rows is on the host now: the cache, norms, the rotary table.
bool RestOnHost(const Batch& batch, const AttentionStep& step);

// The cosines of a batch row's token, then its sines, in 256 elements.
npu::BufferView RotaryTable(Engine& engine, Batch& batch, const AttentionStep& step, int64_t b);

// The copy of the cache for a step of one query row, with its past. An invocation of the batch
// makes the new rows and appends them there; after the run, the host takes them from there. `step`,
// `caches` and `threads` must live until the batch has run.
KvCopy& AppendCache(Engine& engine, Batch& batch, const AttentionStep& step, PlanCaches& caches,
                    const ThreadPool& threads);

// Adds a step of one query row. Queries, keys and values that an earlier step of the batch leaves
// on the device are normalised, rotated and appended there, and the new rows of the present come
// back from it. If they are on the host, the host prepares them. Returns false, and changes
// nothing, if the batch has to run first. `step`, `caches` and `threads` must live until the batch
// has run.
bool AppendAttention(Engine& engine, Batch& batch, const char* design, const AttentionStep& step,
                     PlanCaches& caches, const ThreadPool& threads);

// Executes a step of several query rows. The padding of a prompt that is shorter than others gets
// zeros.
void AttendPrompt(Engine& engine, const AttentionStep& step, PlanCaches& caches,
                  const ThreadPool& threads);

}  // namespace ort_aie::npu_target
