// Attention on the device.
#pragma once

#include <cstdint>
#include <vector>

#include "targets/npu/schedule/scheduling.h"

namespace ort_aie::npu_target {

// How many of a step's tokens are processed at a time: one, or a prompt's chunk.
int64_t TokensAtATime(const DeviceFacts& facts, const AttentionStep& step);
// For how many of its new tokens the copy of its cache has to have room: a chunk that the host
// prepares, or all.
int64_t TokensTogether(const DeviceFacts& facts, const AttentionStep& step);

// Whether queries, keys and values on the device have to go to the host and back before attention,
// because no sequence of `design` prepares them.
bool HostPrepares(const AttentionStep& step, Design design);

// Whether everything but the new rows is on the host now: the cache, norms, the rotary table.
bool RestOnHost(const Batch& batch, const AttentionStep& step);

// The cosines of a batch row's token, then its sines, in 256 elements.
npu::BufferView RotaryTable(Batch& batch, const AttentionStep& step, int64_t b);

// The copy of a cache for a step.
struct TokenCache {
  const CacheRows& rows;
  KvCopy* copy;
  std::vector<int64_t> first;  // the token of row 0 when the batch runs, by batch row
};
// `place`, with the step's past. Invocations of the batch make the new rows and append them there;
// after the run, the host takes them from there. The step must live until the batch has run.
TokenCache AppendCache(Batch& batch, const AttentionStep& step, const CachePlace& place);

// Adds a step of one query row. Queries, keys and values that an earlier step of the batch leaves
// on the device are normalised, rotated and appended there, and the new rows of the present come
// back from it. If they are on the host, the host prepares them. Returns false, and changes
// nothing, if the batch has to run first. The step must live until the batch has run.
bool AppendAttention(Scheduling& scheduling, Batch& batch, Design design,
                     const AttentionStep& step);

// Why the host prepares the queries, keys and values of a prompt, wherever they are; kNone if the
// device may do it.
Reason WhyHostPrepares(const DeviceFacts& facts, const AttentionStep& step);
// Adds a step of several query rows to a batch that leaves its queries, keys and values on the
// device: they are normalised, rotated and appended there. Returns false, and changes nothing but
// perhaps scheduling.divides, if the batch has to run first. The step must live until the batch has
// run.
bool AppendPromptAttention(Scheduling& scheduling, Batch& batch, const AttentionStep& step);

// The batches of a step of several query rows that the host prepares. The padding of a prompt that
// is shorter than others gets zeros.
void AttendPrompt(Scheduling& scheduling, const AttentionStep& step, Stage& stage);

}  // namespace ort_aie::npu_target
