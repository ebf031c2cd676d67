// What comes before attention on any target: queries, and the present that the host writes.
#pragma once

#include "targets/host/host_target.h"

namespace ort_aie::host {

// x (dim) *= the scales of a KV head.
void Scale(const CacheScales& scales, int64_t kv_head, int64_t dim, float* x);

// Head `head` of a token's query -> x (dim): normalised and rotated, and with a cache of integers
// times the keys' scales, so that products with codes are those with keys.
void LoadQuery(const AttentionStep& step, const Kernels& kernels, int64_t token, int64_t head,
               float* x);

// New keys, normalised and rotated, and values of some tokens of each batch row -> (batch,
// kv_heads, tokens, dim) of the cache's type.
void WriteNewRows(const AttentionStep& step, const Kernels& kernels, const ThreadPool& threads,
                  const Range& tokens, void* keys, void* values);

// The past, and zeros for the rows behind the new ones, in a present that is not the past's buffer.
void CarryPast(const AttentionStep& step, const ThreadPool& threads);

// The whole present of a cache without a window: the past, unless it is there already, the new
// rows, zeros behind them. Doing it twice gives the same.
void WritePresent(const AttentionStep& step, const Kernels& kernels, const ThreadPool& threads);

// Tokens of a batch row before token t of the call.
inline int64_t TokensBefore(const AttentionStep& step, size_t b, int64_t t) {
  return std::min(step.past_length[b] + t, step.total_length[b]);
}

// Leaves in the present of a windowed cache the newest rows, oldest first, of what it held before
// `tokens` and of theirs in keys and values (batch, kv_heads, tokens, dim). Before its first token
// a call has its past, later on what the tokens before left in the present.
void ShiftWindow(const AttentionStep& step, const ThreadPool& threads, const Range& tokens,
                 const void* keys, const void* values);

// The present of a windowed cache, after the call. In place, once only: the past is lost.
void WriteWindowedPresent(const AttentionStep& step, const Kernels& kernels,
                          const ThreadPool& threads);

// Calls f(b, t) for some tokens t of every batch row, of which each takes about token_ns.
template <typename F>
void ForEachToken(int64_t batch, const Range& tokens, const ThreadPool& threads, int64_t token_ns,
                  const F& f) {
  const int64_t count = tokens.end - tokens.first;
  threads.ParallelFor(batch * count, token_ns,
                      [&](int64_t i) { f(i / count, tokens.first + i % count); });
}

}  // namespace ort_aie::host
