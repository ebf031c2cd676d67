// The inner half of attention: some query rows of one KV head against a range of keys.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "targets/host/host_target.h"

namespace ort_aie::host {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Keys are split among tasks for calls of up to so many positions: with more, the tiles are enough
// tasks, and states are large.
constexpr int64_t kFewPositions = 17;

// Whether each position of a call is computed as a call of one token computes it, bit for bit, so
// that a token does not depend on which are drafted with it: alone in its tile, with the splits of
// its own keys. The cache stays in L2 from one position to the next.
inline bool AsSingleTokens(const AttentionStep& step) {
  return step.causal && step.sequence <= kFewPositions;
}

// The keys that query t of batch row b can see; a key mask may hide some of them. Neither end
// decreases as t grows.
Range Visible(const AttentionStep& step, int64_t b, int64_t t);

// Rows of keys and values in the cache's type, one KV head after the other.
struct KeySegment {
  const void *keys, *values;
  int64_t head_stride;  // elements between KV heads
  int64_t first;        // position of row 0
  int64_t count;

  int64_t At(int64_t kv_head, int64_t position, int64_t dim) const {
    return kv_head * head_stride + (position - first) * dim;
  }
};

// Query positions [t0, t0 + positions) of all heads of a KV head, so that keys and values are read
// once for the whole group.
struct QueryTile {
  int64_t b, kv_head, t0, positions;
  const float* queries = nullptr;  // (positions, group, dim)
};

// The state of a sweep; rows = positions x group.
struct SweepState {
  float* max;     // (rows)
  float* sum;     // (rows)
  float* output;  // (rows, dim), not divided by sum yet
};

// Initialises a state, and sweeps the tile's keys within `range` into it, chunk by chunk. `next`
// are the keys that this thread probably reads next, or null.
void SweepKeys(const AttentionStep& step, const Kernels& kernels, const QueryTile& tile,
               std::span<const KeySegment> segments, Range range, const SweepState& state,
               const void* next);

}  // namespace ort_aie::host
