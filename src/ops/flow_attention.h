// aie.FlowAttention: inputs 0-15, outputs and attributes of com.microsoft.GroupQueryAttention v1 at
// ONNX Runtime 1.31, an attention mask, and work that models do in nodes of their own before the
// attention: rotation by each token's position ids, norms of values, norms after the rotation,
// tables of rotations.
// Computed as FlowKV (one query row) or FlowQKV (more): chunked online softmax.
// docs/flow-attention.md has the table of the contract.
#pragma once

#include <array>

namespace ort_aie {

struct FlowAttention {
  enum Input {
    kQuery,
    kKey,
    kValue,
    kPastKey,
    kPastValue,
    kSeqlensK,
    kTotalSequenceLength,
    kCosCache,
    kSinCache,
    kPositionIds,
    kAttentionBias,
    kHeadSink,
    kKScale,
    kVScale,
    kQNormWeight,
    kKNormWeight,
    kAttentionMask,
    kVNormWeight,
    kRotaryFrequencies,
    kInputCount
  };
  static const std::array<const char*, kInputCount> kInputNames;
  static constexpr float kDefaultEpsilon = 1e-6f;  // qk_norm_epsilon
};

}  // namespace ort_aie
