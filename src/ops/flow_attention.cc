#include "ops/flow_attention.h"

#include <algorithm>
#include <cmath>

#include "ops/error.h"
#include "ops/format.h"

namespace ort_aie {
namespace {

constexpr const char* kInputNames[] = {"query",
                                       "key",
                                       "value",
                                       "past_key",
                                       "past_value",
                                       "seqlens_k",
                                       "total_sequence_length",
                                       "cos_cache",
                                       "sin_cache",
                                       "position_ids",
                                       "attention_bias",
                                       "head_sink",
                                       "k_scale",
                                       "v_scale",
                                       "q_norm_weight",
                                       "k_norm_weight"};

void RequireShape(const FlowAttention::Inputs& inputs, FlowAttention::Input input, DataType type,
                  const Shape& shape) {
  RequireTensor(kInputNames[input], inputs[input], type, shape);
}

int64_t TotalSequenceLength(const FlowAttention::Inputs& inputs) {
  return *inputs[FlowAttention::kTotalSequenceLength].as<int32_t>();
}

// The past of batch row b follows from seqlens_k alone; a first prompt has none, whatever its
// padding.
bool IsFirstPrompt(int64_t sequence, int64_t total) { return sequence == total; }

}  // namespace

FlowAttention::FlowAttention(const FlowAttentionAttributes& attributes) : attributes_(attributes) {
  const auto& a = attributes_;
  CheckFormat(a.format);
  Require(a.num_heads > 0 && a.kv_num_heads > 0 && a.num_heads % a.kv_num_heads == 0,
          "attribute num_heads must be a positive multiple of kv_num_heads, got num_heads=",
          a.num_heads, " kv_num_heads=", a.kv_num_heads);
  Require(a.qk_output == 0, "attribute qk_output=", a.qk_output,
          " is not supported: chunked attention never holds the whole score matrix");
  Require(a.causal == 0 || a.causal == 1, "attribute causal must be 0 or 1, got ", a.causal);
  Require(
      a.causal == 1 || a.local_window_size <= 0,
      "attribute local_window_size needs causal=1, got local_window_size=", a.local_window_size);
  Require(!Windowed() || a.local_window_size > 0,
          "attribute sliding_window_cache=1 needs local_window_size > 0, got ",
          a.local_window_size);
}

int64_t FlowAttention::HeadDim(const Inputs& inputs) const {
  const Tensor& query = inputs[kQuery];
  Require(IsFloat(query.type), "input query must be float, float16 or bfloat16, got ",
          NameOf(query.type));
  Require(query.shape.size() == 3, "input query must be (batch, sequence, channels), got ",
          ToString(query.shape));
  const bool packed = !inputs[kKey];
  Require(packed == !inputs[kValue], "inputs key and value go together, got only one of them");
  const int64_t heads = attributes_.num_heads + (packed ? 2 * attributes_.kv_num_heads : 0);
  const int64_t channels = query.shape[2];
  Require(channels > 0 && channels % heads == 0, "input query has ", channels,
          " channels, which is no multiple of ", heads, packed ? " heads (packed QKV)" : " heads");
  return channels / heads;
}

void FlowAttention::CheckRotary(const Inputs& inputs, int64_t dim) const {
  const Tensor& cos = inputs[kCosCache];
  Require(cos && inputs[kSinCache], "attribute do_rotary=1 needs inputs cos_cache and sin_cache");
  const DataType type = inputs[kQuery].type;
  Require(cos.type == type && cos.shape.size() == 2 && cos.shape[1] > 0 && 2 * cos.shape[1] <= dim,
          "input cos_cache must be ", NameOf(type), " (max_position, at most ", dim / 2, "), got ",
          NameOf(cos.type), " ", ToString(cos.shape));
  RequireShape(inputs, kSinCache, type, cos.shape);
}

FlowAttention::Outputs FlowAttention::OutputShapes(const Inputs& inputs) const {
  const int64_t dim = HeadDim(inputs);
  const Tensor& query = inputs[kQuery];
  const int64_t batch = query.shape[0], sequence = query.shape[1];
  const int64_t kv_heads = attributes_.kv_num_heads;
  Require(dim % 8 == 0, "head dimension must be a multiple of 8, got ", dim);
  if (inputs[kKey]) {
    RequireShape(inputs, kKey, query.type, {batch, sequence, kv_heads * dim});
    RequireShape(inputs, kValue, query.type, {batch, sequence, kv_heads * dim});
  }

  Require(static_cast<bool>(inputs[kSeqlensK]), "input seqlens_k is missing");
  Require(static_cast<bool>(inputs[kTotalSequenceLength]),
          "input total_sequence_length is missing");
  const Tensor& seqlens = inputs[kSeqlensK];
  Require(seqlens.type == DataType::kInt32 && ElementCount(seqlens.shape) == batch,
          "input seqlens_k must be int32 (", batch, "), got ", NameOf(seqlens.type), " ",
          ToString(seqlens.shape));
  const Tensor& total_tensor = inputs[kTotalSequenceLength];
  Require(total_tensor.type == DataType::kInt32 && ElementCount(total_tensor.shape) == 1,
          "input total_sequence_length must be one int32, got ", NameOf(total_tensor.type), " ",
          ToString(total_tensor.shape));
  const int64_t total = TotalSequenceLength(inputs);
  Require(total >= sequence, "input total_sequence_length is ", total, ", less than the ", sequence,
          " query rows");

  const Tensor& past = inputs[kPastKey];
  Require(static_cast<bool>(past) == static_cast<bool>(inputs[kPastValue]),
          "inputs past_key and past_value go together, got only one of them");
  int64_t past_capacity = 0;
  if (past) {
    Require(IsFloat(past.type), "input past_key must be float, float16 or bfloat16, got ",
            NameOf(past.type));
    Require(past.shape.size() == 4 && past.shape[0] == batch && past.shape[1] == kv_heads &&
                past.shape[3] == dim,
            "input past_key must be (", batch, ", ", kv_heads, ", length, ", dim, "), got ",
            ToString(past.shape));
    RequireShape(inputs, kPastValue, past.type, past.shape);
    past_capacity = past.shape[2];
  }
  const int64_t window = attributes_.local_window_size;
  if (Windowed()) {
    Require(past_capacity >= window, "input past_key holds ", past_capacity,
            " rows; a sliding-window cache needs at least local_window_size=", window);
  }
  const bool first_prompt = IsFirstPrompt(sequence, total);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = int64_t{seqlens.as<int32_t>()[b]} + 1;
    Require(length >= 1 && length <= total, "input seqlens_k[", b, "] is ", length - 1,
            ", outside [0, total_sequence_length=", total, ")");
    if (first_prompt) continue;
    Require(length >= sequence, "input seqlens_k[", b, "] is ", length - 1, ", less than the ",
            sequence, " query rows less one");
    Require(Windowed() || length - sequence <= past_capacity, "input seqlens_k[", b, "] says ",
            length - sequence, " past tokens, but past_key holds ", past_capacity, " rows");
  }

  if (attributes_.do_rotary == 1) {
    CheckRotary(inputs, dim);
    const int64_t max_position = inputs[kCosCache].shape[0];
    Require(inputs[kPositionIds] || total <= max_position, "total_sequence_length ", total,
            " is beyond cos_cache's ", max_position, " positions");
  }
  if (const Tensor& ids = inputs[kPositionIds]) {
    Require(ids.type == DataType::kInt64 &&
                (ids.shape == Shape{batch, sequence} || (first_prompt && ids.shape == Shape{1})),
            "input position_ids must be int64 (", batch, ", ", sequence, "), got ",
            NameOf(ids.type), " ", ToString(ids.shape));
  }
  if (const Tensor& bias = inputs[kAttentionBias]) {
    const Shape& s = bias.shape;
    Require(bias.type == query.type && s.size() == 4 && (s[0] == batch || s[0] == 1) &&
                (s[1] == attributes_.num_heads || s[1] == 1) && s[2] == sequence && s[3] >= total,
            "input attention_bias must be ", NameOf(query.type), " (", batch, " or 1, ",
            attributes_.num_heads, " or 1, ", sequence, ", ", total, "), got ", NameOf(bias.type),
            " ", ToString(s));
  }
  if (inputs[kHeadSink]) RequireShape(inputs, kHeadSink, query.type, {attributes_.num_heads});
  if (inputs[kQNormWeight]) RequireShape(inputs, kQNormWeight, query.type, {dim});
  if (inputs[kKNormWeight]) RequireShape(inputs, kKNormWeight, query.type, {dim});
  for (Input quantised : {kKScale, kVScale}) {
    Require(!inputs[quantised], "input ", kInputNames[quantised],
            ": a quantised KV cache is not supported");
  }

  const int64_t capacity = Windowed() ? past_capacity : std::max(past_capacity, total);
  return {{batch, sequence, attributes_.num_heads * dim}, {batch, kv_heads, capacity, dim}};
}

Plan FlowAttention::MakePlan(const Inputs& inputs, const Outputs& shapes, void* output,
                             void* present_key, void* present_value) const {
  const auto& a = attributes_;
  const Tensor& query = inputs[kQuery];
  AttentionStep step{};
  step.batch = query.shape[0];
  step.sequence = query.shape[1];
  step.heads = a.num_heads;
  step.kv_heads = a.kv_num_heads;
  step.dim = shapes.present[3];
  step.type = query.type;
  if (step.batch == 0) return {};

  step.query = query.data;
  if (inputs[kKey]) {
    step.query_stride = step.heads * step.dim;
    step.key_stride = step.value_stride = step.kv_heads * step.dim;
    step.key = inputs[kKey].data;
    step.value = inputs[kValue].data;
  } else {  // packed: Q, K and V of a token stand one after the other
    step.query_stride = step.key_stride = step.value_stride =
        (step.heads + 2 * step.kv_heads) * step.dim;
    const auto* first = static_cast<const uint8_t*>(query.data);
    const auto size = static_cast<int64_t>(SizeOf(query.type));
    step.key = first + step.heads * step.dim * size;
    step.value = first + (step.heads + step.kv_heads) * step.dim * size;
  }

  const Tensor& past = inputs[kPastKey];
  step.past_key = past ? past.data : nullptr;
  step.past_value = past ? inputs[kPastValue].data : nullptr;
  step.past_capacity = past ? past.shape[2] : 0;
  step.cache_type = past ? past.type : query.type;
  step.present_key = present_key;
  step.present_value = present_value;
  step.present_capacity = shapes.present[2];
  step.windowed_cache = Windowed();

  const int64_t total = TotalSequenceLength(inputs);
  const bool first_prompt = IsFirstPrompt(step.sequence, total);
  for (int64_t b = 0; b < step.batch; ++b) {
    const int64_t length = int64_t{inputs[kSeqlensK].as<int32_t>()[b]} + 1;
    step.total_length.push_back(length);
    step.past_length.push_back(first_prompt ? 0 : length - step.sequence);
  }

  step.q_norm = inputs[kQNormWeight] ? inputs[kQNormWeight].data : nullptr;
  step.k_norm = inputs[kKNormWeight] ? inputs[kKNormWeight].data : nullptr;
  step.norm_epsilon = a.qk_norm_epsilon;
  if (a.do_rotary == 1) {
    step.cos = inputs[kCosCache].data;
    step.sin = inputs[kSinCache].data;
    step.rotary_dim = 2 * inputs[kCosCache].shape[1];
    step.rotary_interleaved = a.rotary_interleaved == 1;
    const int64_t max_position = inputs[kCosCache].shape[0];
    const Tensor& ids = inputs[kPositionIds];
    for (int64_t b = 0; b < step.batch; ++b) {
      for (int64_t t = 0; t < step.sequence; ++t) {
        // Of a first prompt, GroupQueryAttention reads the first id alone.
        const int64_t position = !ids           ? step.past_length[b] + t
                                 : first_prompt ? ids.as<int64_t>()[0] + t
                                                : ids.as<int64_t>()[b * step.sequence + t];
        Require(position >= 0 && position < max_position, "position ", position, " of batch row ",
                b, " is outside cos_cache's ", max_position, " positions");
        step.positions.push_back(position);
      }
    }
  }

  step.scale = a.scale != 0.0f ? a.scale : 1.0f / std::sqrt(static_cast<float>(step.dim));
  step.softcap = a.softcap;
  step.causal = a.causal == 1;
  step.window = a.local_window_size;
  if (const Tensor& bias = inputs[kAttentionBias]) {
    const Shape& s = bias.shape;
    step.bias = bias.data;
    step.bias_row_stride = s[3];
    step.bias_head_stride = s[1] == 1 ? 0 : s[2] * s[3];
    step.bias_batch_stride = s[0] == 1 ? 0 : s[1] * s[2] * s[3];
  }
  step.head_sink = inputs[kHeadSink] ? inputs[kHeadSink].data : nullptr;
  step.smooth_softmax = a.smooth_softmax == 1;
  step.output = output;
  step.kept = kept_;
  return {std::move(step)};
}

}  // namespace ort_aie
