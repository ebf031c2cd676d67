// A plan: the ordered steps that an op wants done, over buffers. Targets see steps, never nodes.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "ops/tensor.h"
#include "q4nx/layout.h"

namespace ort_aie {

// bf16: activations rounded to bfloat16, float32 accumulation.
// int8: activations quantised to int8 per group of 32, exact integer dot products, float32 after.
enum class Numerics { kBf16, kInt8 };

// What a target keeps for an op from one call to the next, such as its weights on a device. It is
// of the target's making, and goes when the op goes.
struct KeptState {
  std::mutex mutex;  // guards which object `object` names
  std::shared_ptr<void> object;
};

// What stands between the two halves of a gated MLP.
enum class Activation { kSilu, kGeluTanh };

// y (rows, n) = x (rows, k) . W^T + bias, W of any form. One row of quantised weights, on the host
// a few as well, is FusedDQP (paper 1, III-A); more are dequantisation + GEMM (paper 2), and those
// of bf16 weights GEMM. What a model does before and after belongs to the step, because it costs
// nothing while a row or a result is in registers and a pass over memory otherwise:
//   x = a, or with norm_weight the RMS norm of a, or with skip that of sum = a + skip;
//   with up_weights, y = activation(x . W^T) * (x . U^T), the gate and up projections of an MLP.
struct MatMulStep {
  const uint8_t* weights;  // (ceil(n/32), ceil(k/256), BlockBytes(form))
  WeightForm form = WeightForm::kQ4NX;
  int64_t rows, k, n;
  const void* a;
  const void* bias;  // (n) of type, or null; null where up_weights is given
  void* y;
  DataType type;      // of a, bias, y, norm_weight, skip and sum
  Numerics numerics;  // kBf16 with bf16 weights
  bool symmetric;     // every min is -2^(bits-1) * scale: a target need not read the minima

  const void* norm_weight = nullptr;  // (k), or null: no norm
  const void* skip = nullptr;         // (rows, k), or null
  void* sum = nullptr;                // (rows, k), where skip is given
  float norm_epsilon = 0;

  const uint8_t* up_weights = nullptr;  // as weights, or null: not gated
  Activation activation = Activation::kSilu;

  std::shared_ptr<KeptState> kept;  // the op's, whose weights stay as they are; null: keep nothing

  int64_t prompt_chunk = 0;  // about as many rows are worked on at a time; 0: as the target likes
};

// y (count, k) = rows of W given by indices; a negative index counts from n, one out of range gives
// a row of zeros (GatherBlockQuantized's contract).
struct GatherStep {
  const uint8_t* weights;  // as in MatMulStep
  int64_t count, k, n;
  const void* indices;
  DataType index_type;
  void* y;
  DataType type;
  WeightForm form = WeightForm::kQ4NX;  // a quantised one
};

// Positions [first, end).
struct Range {
  int64_t first, end;
};

// Of a KV cache of integers, which stand for code * scale: one scale, or (kv_heads, dim).
struct CacheScales {
  const float* data = nullptr;
  bool per_channel = false;

  explicit operator bool() const { return data != nullptr; }
  // One, or those of the head's channels.
  const float* OfHead(int64_t kv_head, int64_t dim) const {
    return per_channel ? data + kv_head * dim : data;
  }
};

// Grouped-query attention on a KV cache: FlowKV for one query row, FlowQKV for more. See
// ops/flow_attention.h for the contract; here everything is checked and resolved.
struct AttentionStep {
  int64_t batch, sequence, heads, kv_heads, dim;
  int64_t key_sequence;                            // tokens of key and value
  const void *query, *key, *value;                 // first element; token t of batch b starts at
  int64_t query_stride, key_stride, value_stride;  // (b * tokens + t) * stride elements
  DataType type;                                   // of query, key, value, bias, output

  const void *past_key, *past_value;  // (batch, kv_heads, past_capacity, dim)
  void *present_key, *present_value;  // (batch, kv_heads, present_capacity, dim); may be the past's
  int64_t past_capacity, present_capacity;
  DataType cache_type;
  CacheScales key_scales, value_scales;  // where cache_type is kInt8 or kInt4

  std::vector<int64_t> past_length;   // tokens before this call, per batch row
  std::vector<int64_t> total_length;  // tokens after it (padding of a shorter prompt not counted)
  bool windowed_cache;                // sliding_window_cache: the cache keeps the newest rows only

  const void *q_norm, *k_norm;  // (dim) of type, or null: RMS norm per head before rotary
  float norm_epsilon;
  const void *cos, *sin;  // (max_position, rotary/2) of type, or null
  int64_t rotary_dim;     // channels that are rotated
  bool rotary_interleaved;
  std::vector<int64_t> positions;  // (batch, sequence), where rotary is on

  float scale, softcap;
  bool causal;
  int64_t window;  // keys a query sees, itself included; <= 0: all
  // Keys that their batch row sees at all lie in its range, per batch row; empty: all do. Where
  // key_mask (batch, longest total) is given, those of them with a 0 are hidden as well.
  std::vector<Range> visible_keys;
  const int64_t* key_mask;
  int64_t key_mask_stride;
  const void* bias;
  int64_t bias_batch_stride, bias_head_stride, bias_row_stride;  // elements
  const void* head_sink;                                         // (heads) of type, or null
  bool smooth_softmax;
  bool float32_products;  // of prompts as well; on the host

  void* output;  // (batch, sequence, heads * dim)

  std::shared_ptr<KeptState> kept;  // the op's; null: keep nothing

  int64_t prompt_chunk;  // about as many tokens are worked on at a time; 0: as the target likes
};

using Step = std::variant<MatMulStep, GatherStep, AttentionStep>;
using Plan = std::vector<Step>;

// The rows that a windowed cache of the given capacity holds after `total` tokens: the newest ones.
// It drops capacity - window + 1 rows whenever it overflows, so the layout depends on total only.
constexpr int64_t WindowedCacheRows(int64_t total, int64_t capacity, int64_t window) {
  if (total <= capacity) return total;
  const int64_t drop = capacity - window + 1;
  return total - drop * ((total - capacity + drop - 1) / drop);
}

}  // namespace ort_aie
