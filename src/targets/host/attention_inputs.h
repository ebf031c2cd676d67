// The work before attention on any target: queries, and the present, which the host writes.
#pragma once

#include "targets/host/host_target.h"

namespace ort_aie::host {

// x (dim) *= the scales of a KV head.
void Scale(const Kernels& kernels, const CacheScales& scales, int64_t kv_head, int64_t dim,
           float* x);

// Loads head `head` of a token's query into x (dim): normalised and rotated. With a cache of
// integers it is also multiplied by the keys' scales, so that products with codes equal products
// with keys.
void LoadQuery(const AttentionStep& step, const Kernels& kernels, int64_t token, int64_t head,
               float* x);

// Writes the new keys, normalised and rotated, and the new values of some tokens of each batch row
// to (batch, kv_heads, tokens, dim) in the cache's type.
void WriteNewRows(const AttentionStep& step, const Kernels& kernels, const ThreadPool& threads,
                  const Range& tokens, void* keys, void* values);

// Writes the past, and zeros for the rows after the new ones, to a present that is not the past's
// buffer.
void CarryPast(const AttentionStep& step, const ThreadPool& threads);

// Writes a token's new key and value of a KV head to a present without a window.
void WritePresentRow(const AttentionStep& step, const Kernels& kernels, int64_t b, int64_t t,
                     int64_t kv_head);

// Writes the whole present of a cache without a window: the past, unless it is there already, the
// new rows, and zeros after them. Doing it twice gives the same result.
void WritePresent(const AttentionStep& step, const Kernels& kernels, const ThreadPool& threads);

// Tokens of a batch row before token t of the call.
inline int64_t TokensBefore(const AttentionStep& step, size_t b, int64_t t) {
  return std::min(step.past_length[b] + t, step.total_length[b]);
}

// Leaves the newest rows, oldest first, in the present of a windowed cache: from the rows that it
// held before `tokens`, and from the rows of `tokens` in keys and values (batch, kv_heads, tokens,
// dim). Before the first token of a call these are the past; later, what the tokens before left in
// the present.
void ShiftWindow(const AttentionStep& step, const ThreadPool& threads, const Range& tokens,
                 const void* keys, const void* values);

// Writes the present of a windowed cache after the call. If it is in place, call this only once:
// the past is lost.
void WriteWindowedPresent(const AttentionStep& step, const Kernels& kernels,
                          const ThreadPool& threads);

// Calls f(b, t) for some tokens t of every batch row. Each call takes about token_ns.
template <typename F>
void ForEachToken(int64_t batch, const Range& tokens, const ThreadPool& threads, int64_t token_ns,
                  const F& f) {
  const int64_t count = tokens.end - tokens.first;
  threads.ParallelFor(batch * count, token_ns,
                      [&](int64_t i) { f(i / count, tokens.first + i % count); });
}

}  // namespace ort_aie::host
