// aie.FlowAttention: inputs 0-15, outputs and attributes of com.microsoft.GroupQueryAttention v1 at
// ONNX Runtime 1.31, an attention mask, and work that models do in nodes of their own before the
// attention: rotation by each token's position ids, norms of values, norms after the rotation,
// tables of rotations.
// Computed as FlowKV (one query row) or FlowQKV (more): chunked online softmax.
// docs/flow-attention.md has the table of the contract.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>

#include "ops/options.h"
#include "ops/plan.h"
#include "ops/rotations.h"

namespace ort_aie {

struct FlowAttentionAttributes {
  int64_t num_heads = 0, kv_num_heads = 0, format = 0;
  float scale = 0;  // 0: 1 / sqrt(dim)
  float softcap = 0, qk_norm_epsilon = 1e-6f;
  int64_t do_rotary = 0, rotary_interleaved = 0, local_window_size = -1, smooth_softmax = -1,
          causal = 1, sliding_window_cache = 0, qk_output = 0, float32_products = 0;
  // How position_ids are read. 0: as by GroupQueryAttention. 1: each token has one. 3: each token
  // has three, (3, batch, sequence), for which the mrope_ attributes are.
  int64_t position_axes = 0, mrope_height = 0, mrope_width = 0, mrope_interleaved = 0;
  int64_t norm_after_rotary = 0;
  // With rotary_frequencies: positions that may be rotated by, and what cos and sin are times.
  int64_t rotary_positions = 0;
  float rotary_magnitude = 1;
  // For a KV cache of integers: NONE, PER_TENSOR or PER_CHANNEL (empty means NONE); 8 or 4 bits.
  std::string k_quant_type = {}, v_quant_type = {};
  int64_t kv_cache_bit_width = 0;
};

class FlowAttention {
 public:
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
  using Inputs = std::span<const Tensor>;  // at least kInputCount of them

  FlowAttention(const FlowAttentionAttributes& attributes, const Options& options);

  struct Outputs {
    Shape output;   // (batch, sequence, heads * dim)
    Shape present;  // (batch, kv_heads, capacity, dim), keys and values alike; with 4 bits, dim / 2
    DataType cache;  // of present
  };

  // Checks shapes, types and lengths, and returns the output shapes.
  Outputs OutputShapes(const Inputs& inputs) const;

  // Call after OutputShapes, with the output buffers. Those of present may be null if the cache is
  // shared.
  void Append(const Inputs& inputs, const Outputs& shapes, void* output, void* present_key,
              void* present_value, Plan& plan) const;

 private:
  // The sizes of one call.
  struct Call {
    int64_t batch, sequence, key_sequence, dim, past_capacity, total;
    // seqlens_k is absent: each batch row has past_capacity tokens before the call.
    bool by_index;
    // With seqlens_k: no batch row has a past, because total_sequence_length is `sequence`. Only
    // then may seqlens_k give a row fewer tokens than queries; the others are padding.
    bool first_prompt;
    // Key and value have no rows: another attention wrote the past, with the keys of these queries.
    bool shared_cache;
  };

  bool Windowed() const { return attributes_.sliding_window_cache == 1; }
  // Whether the cache holds integers.
  bool Quantised() const { return attributes_.kv_cache_bit_width != 0; }
  Call Sizes(const Inputs& inputs) const;
  int64_t HeadDim(const Inputs& inputs) const;
  DataType CacheType(const Inputs& inputs) const;
  // Elements in a row of past and present, as tensors.
  int64_t CacheWidth(int64_t dim) const {
    return attributes_.kv_cache_bit_width == 4 ? dim / 2 : dim;
  }
  void CheckScales(const Inputs& inputs, const Call& call) const;
  void CheckLengths(const Inputs& inputs, const Call& call) const;
  void CheckRotary(const Inputs& inputs, const Call& call) const;
  int64_t MostPositions(const Inputs& inputs) const;
  const char* NameOfMost(const Inputs& inputs) const;
  void CheckPositions(const Inputs& inputs, const Call& call) const;
  void CheckMasks(const Inputs& inputs, const Call& call) const;
  void PlacePositions(const Inputs& inputs, const Call& call, AttentionStep& step) const;
  void PlaceAxes(const Inputs& inputs, AttentionStep& step) const;
  void PlaceTables(const Inputs& inputs, AttentionStep& step) const;

  FlowAttentionAttributes attributes_;
  bool float32_products_;
  int64_t prompt_chunk_;
  std::shared_ptr<KeptState> kept_ = std::make_shared<KeptState>();
  std::shared_ptr<KeptRotations> rotations_ = std::make_shared<KeptRotations>();
};

}  // namespace ort_aie
