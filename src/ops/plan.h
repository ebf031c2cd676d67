// A plan: an op's work as ordered steps over buffers. Targets see steps, never nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ops/tensor.h"
#include "q4nx/layout.h"

namespace ort_aie {

// bf16: activations rounded to bfloat16, float32 accumulation.
// int8: activations quantised to int8 per group of 32, exact integer dot products, then float32.
enum class Numerics { kBf16, kInt8 };

// What a target keeps for an op between calls, such as its weights on a device. The target makes
// it, and it is destroyed with the op.
struct KeptState {
  std::mutex mutex;  // guards which object `object` names
  std::shared_ptr<void> object;
};

// The function of a projection's result; of the first one, if a second projection gates it.
enum class Activation { kNone, kSilu, kGeluTanh, kRelu, kSwiglu };

// kSwiglu, for gate g and up u: min(g, limit) * sigmoid(alpha * min(g, limit)) *
// (clamp(u, -limit, limit) + beta). With limit_after, g has no limit, but
// g * sigmoid(alpha * g) does.
struct Swiglu {
  float alpha = 1, beta = 0, limit = std::numeric_limits<float>::infinity();
  bool limit_after = false;
};

// y (rows, n) = x (rows, k) . W^T + bias, with W of any form. One row of quantised weights (on the
// host also a few rows) is FusedDQP (*Efficient LLM Decoding on Ryzen AI NPUs*, III-A); more rows
// are dequantisation + GEMM. bf16 weights always use GEMM. The step includes what a model does
// before and after the product, because that costs nothing while a row or a result is in registers,
// and otherwise costs a pass over memory:
//   x = a; with norm_weight, the RMS norm of a; with skip, the RMS norm of sum = a + skip;
//   with up_weights, y = activation(x . W^T) * (x . U^T), the gate and up projections of an MLP;
//   without, y = activation(x . W^T). Biases are added before the activation.
struct MatMulStep {
  const uint8_t* weights;  // (ceil(n/32), ceil(k/256), BlockBytes(form))
  WeightForm form = {};
  int64_t rows, k, n;
  const void* a;
  const void* bias;  // (n) of type, or null
  void* y;
  DataType type;      // of a, bias, y, norm_weight, skip and sum
  Numerics numerics;  // kBf16 with bf16 weights
  bool symmetric;     // a target need not read minima or zero points (matmul.cc)

  const void* norm_weight = nullptr;  // (k), or null: no norm
  const void* skip = nullptr;         // (rows, k), or null
  void* sum = nullptr;                // (rows, k), or null: not wanted
  float norm_epsilon = 0;

  const uint8_t* up_weights = nullptr;  // as weights, or null: not gated
  const void* up_bias = nullptr;        // (n) of type, or null
  Activation activation = Activation::kNone;
  Swiglu swiglu = {};  // for kSwiglu, which needs up_weights

  std::shared_ptr<KeptState> kept;  // the op's, whose weights never change; null: keep nothing

  int64_t prompt_chunk = 0;  // about so many rows are processed at a time; 0: the target chooses
};

// A layer of experts: the sum, over the chosen experts of each row, of
// weight * (down . h + down_bias), where h = activation(gate . x + gate_bias) * (up . x + up_bias),
// or without `up` activation(gate . x + gate_bias). ops/routing.h chooses and weights the experts,
// and divides a step into projections.
struct MoEStep {
  int64_t rows, hidden, inter, experts, top_k;
  const void* x;       // (rows, hidden)
  const void* router;  // (rows, experts): logits
  const void*
      router_weights;  // (rows, experts), or null: the weights are the chosen logits' softmax
  bool normalize;      // a row's router_weights are divided by their sum
  // Scores are sigmoids: choice_bias (experts, or null) is added to them for the choice alone, and
  // weights are the chosen scores, divided by their sum + epsilon, times factor.
  bool sigmoid;
  const float* choice_bias;
  float epsilon, factor;
  // One expert after the other, each as the weights of a MatMulStep; `up` is null if not gated.
  const uint8_t *gate, *up, *down;
  WeightForm form, up_form, down_form;           // `form` is that of gate
  const float *gate_bias, *up_bias, *down_bias;  // (experts, inter or hidden), or null
  Activation activation;
  Swiglu swiglu;
  void* y;        // (rows, hidden)
  DataType type;  // of x, router, router_weights and y
  Numerics numerics;
  bool symmetric;  // as in MatMulStep, of all weights
  std::shared_ptr<KeptState> kept;
  int64_t prompt_chunk;  // as in MatMulStep
};

// y (count, k) = the rows of W at `indices`. A negative index counts from n; one out of range gives
// a row of zeros (GatherBlockQuantized's contract).
struct GatherStep {
  const uint8_t* weights;  // as in MatMulStep; for a table, (n, k) of type
  int64_t count = 0, k, n;
  const void* indices = nullptr;
  DataType index_type = DataType::kOther;
  void* y = nullptr;
  DataType type;
  WeightForm form = {};   // of quantised weights
  bool is_table = false;  // not quantised: `form` is not used
};

// kSwiglu is silu(a) * b. kUnit divides each row by its length.
enum class Function { kAdd, kMultiply, kSwiglu, kSigmoid, kSilu, kGelu, kGeluTanh, kUnit };
constexpr bool IsBinary(Function function) { return function <= Function::kSwiglu; }
// The function that aie.Activation calls so. Throws Error for any other name.
Function ActivationFunction(const std::string& name);

// y (rows, k) = RMS norm of x, times weight. x = a, or with skip x = sum = a + skip. If only a
// projection reads the norm, it is part of the projection's MatMulStep.
struct NormStep {
  int64_t rows, k;
  const void* a;
  const void* skip;    // (rows, k), or null
  const void* weight;  // (k)
  void* y;
  void* sum;      // (rows, k), or null: not wanted
  DataType type;  // of all tensors
  float epsilon;
  const void* gate = nullptr;  // (rows, k), or null: y is also multiplied by gate_function(gate)
  Function gate_function = Function::kSilu;  // or kSigmoid
};

// y (rows, k) = function(a), or function(a, b), computed in float32.
struct ElementwiseStep {
  Function function;
  int64_t rows, k;
  const void* a;
  const void* b;                                       // of a binary function, else null
  enum class Operand { kTensor, kRow, kScalar } b_is;  // (rows, k), (k), (1)
  void* y;
  DataType type;  // of all tensors
};

// y = x, `count` elements converted to another floating-point type.
struct CastStep {
  int64_t count;
  const void* x;
  DataType from;
  void* y;
  DataType to;
};

// y = a part of x, or x in another order: y is (counts, run bytes), without gaps.
struct MoveStep {
  int64_t counts[3];
  int64_t strides[3];  // of x, in bytes, for each of the counts
  int64_t run;         // bytes that stay together
  const void* x;       // its first run
  void* y;

  int64_t bytes() const { return counts[0] * counts[1] * counts[2] * run; }
};

// y (rows, n) = x . W, few columns of floats: what is too narrow to be quantised.
struct NarrowStep {
  int64_t rows, k, n;
  const void* x;        // (rows, k)
  const void* weights;  // (k, n)
  void* y;
  DataType type;  // of all tensors
};

// A causal convolution of each channel by itself: y[t] is bias + the sum of weight[j] * x[t - taps
// + 1 + j], then SiLU if asked for. The state is what of x comes before t = 0.
struct ConvStep {
  int64_t batch, channels, tokens, taps;
  const void* x;       // (batch, channels, tokens)
  const void* weight;  // (channels, taps)
  const void* bias;    // (channels), or null
  const void* past;    // (batch, channels, taps - 1), or null: zeros
  void* y;             // as x
  void* present;       // as past, and may be its memory
  bool silu;
  DataType type;  // of all tensors
};

// A linear attention: each head has a state S (key_dim, value_dim). For each token, in float32,
//   S = exp(decay) * S + key x delta, y = scale * query . S
// where delta is value, or with beta the delta rule: beta * (value - key . (exp(decay) * S)).
// There may be fewer heads of queries and keys than states, which several states then share, or
// more heads of queries, which share a state. Before that, `unit` divides queries and keys by their
// length; beta may be the argument of a sigmoid; and decay that of a gate, for a head or a channel:
// -exp(rate) * softplus(decay + bias), or lower_bound * sigmoid(exp(rate) * (decay + bias)).
struct RecurrenceStep {
  enum class Gate { kNone, kSoftplus, kSigmoid };

  int64_t batch, tokens, query_heads, key_heads, heads, key_dim, value_dim;
  const void *query, *key, *value;  // (batch, tokens, their heads * dim)
  const void* decay;                // (batch, tokens, decays), or null
  int64_t decays;                   // heads, or heads * key_dim
  const void* beta;                 // (batch, tokens, betas), or null
  int64_t betas;                    // heads or 1
  const void* past;                 // (batch, heads, key_dim, value_dim), or null: zeros
  void* y;                          // (batch, tokens, max(query_heads, heads) * value_dim)
  void* present;                    // as past, and may be its memory
  float scale;
  DataType type, state_type, gate_type;  // of past and present; of decay and beta; of the others
  bool values_first = false;             // the axes of past and present: value_dim, key_dim
  bool unit = false, sigmoid_beta = false;
  Gate gate = Gate::kNone;
  const float *rate = nullptr, *bias = nullptr;  // (heads), (biases), for a gate
  int64_t biases = 0;                            // heads, or heads * key_dim
  float lower_bound = 0;
};

// What a linear attention forgets and learns: decay = factor * softplus(a + bias), beta =
// sigmoid(b).
struct GateStep {
  int64_t rows, heads;
  const void *a, *b;           // (rows, heads); b may be null
  const float *bias, *factor;  // (heads)
  void *decay, *beta;          // as a; beta may be null
  DataType type;               // of a, b, decay, beta
};

// Positions [first, end).
struct Range {
  int64_t first, end;
};

// For a KV cache of integers, each of which means code * scale: one scale, or (kv_heads, dim).
struct CacheScales {
  const float* data = nullptr;
  bool per_channel = false;

  explicit operator bool() const { return data != nullptr; }
  // The one scale, or those of the head's channels.
  const float* OfHead(int64_t kv_head, int64_t dim) const {
    return per_channel ? data + kv_head * dim : data;
  }
};

// M-RoPE: a pair of channels is rotated by a token's position in time (0), by its height (1) or by
// its width (2) in an image.
struct PositionAxes {
  int64_t height = 0, width = 0;  // pairs; the others have time
  bool interleaved = false;  // one pair of each in turn; else first time, then height, then width

  constexpr int64_t Of(int64_t pair, int64_t pairs) const {
    if (interleaved) {
      return pair % 3 == 1 && pair < 3 * height ? 1 : pair % 3 == 2 && pair < 3 * width ? 2 : 0;
    }
    return pair < pairs - height - width ? 0 : pair < pairs - width ? 1 : 2;
  }
};

// Grouped-query attention on a KV cache: FlowKV for one query row, FlowQKV for more. See
// ops/flow_attention.h for the contract. Here everything has been checked and resolved.
struct AttentionStep {
  int64_t batch = 0, sequence = 0, heads = 0, kv_heads = 0, dim = 0;
  int64_t key_sequence = 0;  // tokens of key and value
  // The first elements; token t of batch b starts at (b * tokens + t) * stride elements.
  const void *query = nullptr, *key = nullptr, *value = nullptr;
  int64_t query_stride = 0, key_stride = 0, value_stride = 0;
  DataType type = DataType::kFloat32;  // of query, key, value, bias, output

  const void *past_key = nullptr, *past_value = nullptr;  // (batch, kv_heads, past_capacity, dim)
  // (batch, kv_heads, present_capacity, dim); may be the past's memory
  void *present_key = nullptr, *present_value = nullptr;
  int64_t past_capacity = 0, present_capacity = 0;
  DataType cache_type = DataType::kFloat32;
  CacheScales key_scales = {}, value_scales = {};  // if cache_type is kInt8 or kInt4

  // Tokens before this call and after it, per batch row; the padding of a shorter prompt does not
  // count.
  std::pmr::vector<int64_t> past_length, total_length;
  bool windowed_cache = false;  // sliding_window_cache: the cache keeps the newest rows only

  // (dim) of type, or null: RMS norm per head. Queries and keys are normalised before they are
  // rotated, or with norm_after_rotary after that.
  const void *q_norm = nullptr, *k_norm = nullptr, *v_norm = nullptr;
  bool norm_after_rotary = false;
  float norm_epsilon = 0;
  const void *cos = nullptr, *sin = nullptr;  // (max_position, rotary/2) of type, or null
  int64_t rotary_dim = 0;                     // channels that are rotated
  bool rotary_interleaved = false;
  std::shared_ptr<const void> rotations = nullptr;  // owns cos and sin, if no input does
  // (batch, sequence), with rotary; (3, batch, sequence) if the tokens' axes differ
  std::pmr::vector<int64_t> positions;
  bool mixed_positions = false;
  PositionAxes axes = {};

  float scale = 0, softcap = 0;
  bool causal = false;
  int64_t window = 0;  // keys that a query sees, itself included; <= 0: all
  // Each batch row sees only keys in its range; empty: all rows see all keys. If key_mask (batch,
  // longest total) is given, keys in the range whose mask is 0 are hidden as well.
  std::pmr::vector<Range> visible_keys;
  const int64_t* key_mask = nullptr;
  int64_t key_mask_stride = 0;
  const void* bias = nullptr;
  int64_t bias_batch_stride = 0, bias_head_stride = 0, bias_row_stride = 0;  // elements
  const void* head_sink = nullptr;  // (heads) of type, or null
  bool smooth_softmax = false;
  bool float32_products = false;  // for prompts too; on the host

  void* output = nullptr;  // (batch, sequence, heads * dim)
  int64_t unread = 0;      // of the output, so many first tokens need not be computed

  std::shared_ptr<KeptState> kept = nullptr;  // belongs to the op; null: keep nothing

  int64_t prompt_chunk = 0;  // about so many tokens are processed at a time; 0: the target chooses
};

using Step =
    std::variant<MatMulStep, GatherStep, AttentionStep, NormStep, ElementwiseStep, CastStep,
                 MoEStep, MoveStep, NarrowStep, ConvStep, RecurrenceStep, GateStep>;

// Memory of a program, in which steps leave results that only later steps read. A plan reuses it: a
// step's result is valid until another step overwrites it.
struct Arena {
  const uint8_t* first = nullptr;
  size_t bytes = 0;

  // Whether a whole tensor is in the arena.
  bool Holds(const void* tensor, size_t size) const {
    const auto at = reinterpret_cast<uintptr_t>(tensor), begin = reinterpret_cast<uintptr_t>(first);
    return at >= begin && at - begin <= bytes && size <= bytes - (at - begin);
  }
};

struct Plan {
  explicit Plan(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : steps(memory), names(memory) {}
  Plan(std::initializer_list<Step> all) : steps(all) {}

  std::pmr::vector<Step> steps;  // in the memory of a call; a copy of the plan does not use it
  // The node of the model that a step comes from; empty if not known.
  std::string_view NameOf(size_t step) const { return step < names.size() ? names[step] : node; }
  // `names` and `node` are only for messages to people. Their memory belongs to the plan's maker.
  std::pmr::vector<std::string_view> names;  // of the steps, if they come from several nodes
  std::string_view node;                     // the executed node, in ONNX Runtime's graph
  // If there are several steps: their program's, for what a target makes of them together. Null for
  // one op.
  std::shared_ptr<KeptState> kept;
  // A target need not bring these to the host, unless a step on the host reads them.
  Arena temporaries;
};

// The rows that a windowed cache of the given capacity holds after `total` tokens: the newest ones.
// It drops capacity - window + 1 rows whenever it overflows, so the layout depends only on total.
constexpr int64_t WindowedCacheRows(int64_t total, int64_t capacity, int64_t window) {
  if (total <= capacity) return total;
  const int64_t drop = capacity - window + 1;
  return total - drop * ((total - capacity + drop - 1) / drop);
}

}  // namespace ort_aie
