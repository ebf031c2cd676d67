#include "ops/flow_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>

#include "base/error.h"
#include "ops/op.h"
#include "ops/rotations.h"

namespace ort_aie {

const std::array<const char*, FlowAttention::kInputCount> FlowAttention::kInputNames = {
    "query",
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
    "k_norm_weight",
    "attention_mask",
    "v_norm_weight",
    "rotary_frequencies"};

namespace {

using Inputs = std::span<const Tensor>;  // at least kInputCount of them

constexpr int64_t kMostHeads = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostPositions = 1 << 24;  // exact in float32, and more than models have

struct AttentionAttributes {
  int64_t num_heads, kv_num_heads;
  float scale;  // 0: 1 / sqrt(dim)
  float softcap, qk_norm_epsilon;
  int64_t do_rotary, rotary_interleaved, local_window_size, smooth_softmax, causal,
      sliding_window_cache, qk_output, float32_products;
  // How position_ids are read. 0: as by GroupQueryAttention. 1: each token has one. 3: each token
  // has three, (3, batch, sequence), for which the mrope_ attributes are.
  int64_t position_axes, mrope_height, mrope_width, mrope_interleaved;
  int64_t norm_after_rotary;
  // With rotary_frequencies: positions that may be rotated by, and what cos and sin are times.
  int64_t rotary_positions;
  float rotary_magnitude;
  // For a KV cache of integers: NONE, PER_TENSOR or PER_CHANNEL (empty means NONE); 8 or 4 bits.
  std::string k_quant_type, v_quant_type;
  int64_t kv_cache_bit_width;
};

AttentionAttributes ReadAttributes(const NodeInfo& info) {
  return {.num_heads = info.Int("num_heads", 0),
          .kv_num_heads = info.Int("kv_num_heads", 0),
          .scale = info.Float("scale", 0.0f),
          .softcap = info.Float("softcap", 0.0f),
          .qk_norm_epsilon = info.Float("qk_norm_epsilon", FlowAttention::kDefaultEpsilon),
          .do_rotary = info.Int("do_rotary", 0),
          .rotary_interleaved = info.Int("rotary_interleaved", 0),
          .local_window_size = info.Int("local_window_size", -1),
          .smooth_softmax = info.Int("smooth_softmax", -1),
          .causal = info.Int("causal", 1),
          .sliding_window_cache = info.Int("sliding_window_cache", 0),
          .qk_output = info.Int("qk_output", 0),
          .float32_products = info.Int("float32_products", 0),
          .position_axes = info.Int("position_axes", 0),
          .mrope_height = info.Int("mrope_height", 0),
          .mrope_width = info.Int("mrope_width", 0),
          .mrope_interleaved = info.Int("mrope_interleaved", 0),
          .norm_after_rotary = info.Int("norm_after_rotary", 0),
          .rotary_positions = info.Int("rotary_positions", 0),
          .rotary_magnitude = info.Float("rotary_magnitude", 1.0f),
          .k_quant_type = info.String("k_quant_type"),
          .v_quant_type = info.String("v_quant_type"),
          .kv_cache_bit_width = info.Int("kv_cache_bit_width", 0)};
}

void RequireShape(Inputs inputs, FlowAttention::Input input, DataType type, const Shape& shape) {
  RequireTensor(FlowAttention::kInputNames[input], inputs[input], type, shape);
}

// Whether a kind of quantisation has a scale for each channel. Throws Error for an unknown kind.
bool IsPerChannel(const char* attribute, const std::string& type) {
  Require(type == "PER_TENSOR" || type == "PER_CHANNEL", "attribute ", attribute,
          " must be PER_TENSOR or PER_CHANNEL where kv_cache_bit_width is given, got ",
          type.empty() ? "NONE" : type);
  return type == "PER_CHANNEL";
}

void CheckQuantisation(const AttentionAttributes& a) {
  const auto is_none = [](const std::string& type) { return type.empty() || type == "NONE"; };
  if (a.kv_cache_bit_width == 0) {
    Require(is_none(a.k_quant_type) && is_none(a.v_quant_type),
            "attributes k_quant_type=", a.k_quant_type, " v_quant_type=", a.v_quant_type,
            " need kv_cache_bit_width=8 or 4");
    return;
  }
  Require(a.kv_cache_bit_width == 8 || a.kv_cache_bit_width == 4,
          "attribute kv_cache_bit_width must be 8, 4 or 0 for a cache that is not quantised, got ",
          a.kv_cache_bit_width);
  IsPerChannel("k_quant_type", a.k_quant_type);
  IsPerChannel("v_quant_type", a.v_quant_type);
}

bool Hides(int64_t mask) { return mask == 0; }

// Stores which keys a mask (batch, total) leaves visible. Stores nothing if it hides none.
void ApplyMask(const int64_t* mask, int64_t total, AttentionStep& step) {
  step.visible_keys.reserve(static_cast<size_t>(step.batch));
  bool hides = false, has_holes = false;
  for (int64_t b = 0; b < step.batch; ++b) {
    const int64_t *row = mask + b * total, *row_end = row + total;
    const int64_t* first = std::find_if_not(row, row_end, Hides);
    const int64_t* last = row_end;
    while (last != first && Hides(last[-1])) --last;
    has_holes = has_holes || std::any_of(first, last, Hides);
    hides = hides || has_holes || last - first < total;
    step.visible_keys.push_back({first - row, last - row});
  }
  if (!hides) step.visible_keys.clear();
  if (has_holes) {
    step.key_mask = mask;
    step.key_mask_stride = total;
  }
}

// A present in the past's memory must have its rows where the past has them. Otherwise it would
// overwrite rows that are still to be read.
void CheckPlaces(const char* name, const Tensor& past, const void* present, const Shape& shape) {
  const auto* old_rows = past.as<uint8_t>();
  const auto* new_rows = static_cast<const uint8_t*>(present);
  const int64_t old_bytes = ByteCount(past.type, past.shape).As("a past");
  const int64_t bytes = ByteCount(past.type, shape).As("a present");
  const bool apart = old_rows + old_bytes <= new_rows || new_rows + bytes <= old_rows;
  const bool in_place =
      old_rows == new_rows && (past.shape[2] == shape[2] || shape[0] * shape[1] == 1);
  Require(apart || in_place, "input past_", name, " and output present_", name,
          " share memory, but hold ", past.shape[2], " and ", shape[2],
          " rows; bind separate buffers, or one with as many rows as the longest sequence needs "
          "for both");
}

class FlowAttentionOp final : public Op {
 public:
  using Input = FlowAttention::Input;
  using enum FlowAttention::Input;

  FlowAttentionOp(const NodeInfo& info, const Options& options);
  void Describe(Inputs inputs, std::span<Output> outputs) const override;
  void Append(Inputs inputs, std::span<const Output> outputs, std::span<void* const> buffers,
              Plan& plan) const override;

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
  Call Sizes(Inputs inputs) const;
  int64_t HeadDim(Inputs inputs) const;
  DataType CacheType(Inputs inputs) const;
  // Elements in a row of past and present, as tensors.
  int64_t CacheWidth(int64_t dim) const {
    return attributes_.kv_cache_bit_width == 4 ? dim / 2 : dim;
  }
  void CheckScales(Inputs inputs, const Call& call) const;
  void CheckLengths(Inputs inputs, const Call& call) const;
  void CheckRotary(Inputs inputs, const Call& call) const;
  int64_t MostPositions(Inputs inputs) const;
  static const char* NameOfMost(Inputs inputs);
  void CheckPositions(Inputs inputs, const Call& call) const;
  void CheckMasks(Inputs inputs, const Call& call) const;
  void PlacePositions(Inputs inputs, const Call& call, AttentionStep& step) const;
  void PlaceAxes(Inputs inputs, AttentionStep& step) const;
  void PlaceTables(Inputs inputs, AttentionStep& step) const;

  AttentionAttributes attributes_;
  bool float32_products_;
  int64_t prompt_chunk_;
  std::shared_ptr<KeptState> kept_ = std::make_shared<KeptState>();
  std::shared_ptr<KeptRotations> rotations_ = std::make_shared<KeptRotations>();
};

FlowAttentionOp::FlowAttentionOp(const NodeInfo& info, const Options& options)
    : attributes_(ReadAttributes(info)),
      float32_products_(attributes_.float32_products == 1 &&
                        options.numerics != NumericsOption::kBf16),
      prompt_chunk_(options.prompt_chunk) {
  const auto& a = attributes_;
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
  Require(a.position_axes == 0 || a.position_axes == 1 || a.position_axes == 3,
          "attribute position_axes must be 0, 1 or 3, got ", a.position_axes);
  Require(a.position_axes == 0 || a.do_rotary == 1, "attribute position_axes=", a.position_axes,
          " needs do_rotary=1");
  CheckQuantisation(a);
}

// The type of past and present, as tensors.
DataType FlowAttentionOp::CacheType(Inputs inputs) const {
  if (Quantised()) {
    return attributes_.kv_cache_bit_width == 8 ? DataType::kInt8 : DataType::kUint8;
  }
  return inputs[kPastKey] ? inputs[kPastKey].type : inputs[kQuery].type;
}

int64_t FlowAttentionOp::HeadDim(Inputs inputs) const {
  const Tensor& query = inputs[kQuery];
  Require(IsFloat(query.type), "input query must be float, float16 or bfloat16, got ",
          NameOf(query.type));
  Require(query.shape.size() == 3, "input query must be (batch, sequence, channels), got ",
          query.shape);
  const bool packed = !inputs[kKey];
  Require(packed == !inputs[kValue], "inputs key and value go together, got only one of them");
  const int64_t heads =
      (Size(attributes_.num_heads) + Size(packed ? 2 : 0) * attributes_.kv_num_heads).As("a token");
  const int64_t channels = query.shape[2];
  Require(channels > 0 && channels % heads == 0, "input query has ", channels,
          " channels, which is not a multiple of ", heads,
          packed ? " heads (packed QKV)" : " heads");
  return channels / heads;
}

FlowAttentionOp::Call FlowAttentionOp::Sizes(Inputs inputs) const {
  Call call{};
  call.dim = HeadDim(inputs);
  Require(call.dim % 8 == 0, "head dimension must be a multiple of 8, got ", call.dim);
  const Shape& query = inputs[kQuery].shape;
  call.batch = query[0];
  call.sequence = call.key_sequence = query[1];

  call.by_index = !inputs[kSeqlensK];
  Require(call.by_index == !inputs[kTotalSequenceLength],
          "inputs seqlens_k and total_sequence_length go together, got only one of them");
  if (const Tensor& key = inputs[kKey]) {
    // Rotation uses one position for a token's query and key.
    const bool may_differ = call.by_index && attributes_.do_rotary != 1;
    call.shared_cache = !call.by_index && inputs[kPastKey] && call.sequence > 0 &&
                        key.shape.size() == 3 && key.shape[1] == 0;
    if ((may_differ || call.shared_cache) && key.shape.size() == 3) {
      call.key_sequence = key.shape[1];
    }
    const int64_t channels = attributes_.kv_num_heads * call.dim;
    const DataType type = inputs[kQuery].type;
    RequireShape(inputs, kKey, type, {call.batch, call.key_sequence, channels});
    RequireShape(inputs, kValue, type, {call.batch, call.key_sequence, channels});
  }

  const Tensor& past = inputs[kPastKey];
  Require(static_cast<bool>(past) == static_cast<bool>(inputs[kPastValue]),
          "inputs past_key and past_value go together, got only one of them");
  if (past) {
    if (Quantised()) {
      Require(past.type == CacheType(inputs), "input past_key must be ", NameOf(CacheType(inputs)),
              " for kv_cache_bit_width=", attributes_.kv_cache_bit_width, ", got ",
              NameOf(past.type));
    } else {
      Require(IsFloat(past.type), "input past_key must be float, float16 or bfloat16, got ",
              NameOf(past.type), IsInteger(past.type) ? " without kv_cache_bit_width" : "");
    }
    const Shape& s = past.shape;
    const int64_t width = CacheWidth(call.dim);
    Require(
        s.size() == 4 && s[0] == call.batch && s[1] == attributes_.kv_num_heads && s[3] == width,
        "input past_key must be (", call.batch, ", ", attributes_.kv_num_heads, ", length, ", width,
        "), got ", s);
    RequireShape(inputs, kPastValue, past.type, s);
    call.past_capacity = s[2];
  }

  if (call.by_index) {
    Require(!Windowed(),
            "attribute sliding_window_cache=1 needs inputs seqlens_k and "
            "total_sequence_length");
    call.total = (Size(call.past_capacity) + call.key_sequence).As("past and new keys");
    return call;
  }
  const Tensor& total = inputs[kTotalSequenceLength];
  Require(
      total.type == DataType::kInt32 && total.shape.size() <= 1 && ElementCount(total.shape) == 1,
      "input total_sequence_length must be one int32, got ", NameOf(total.type), " ", total.shape);
  call.total = *total.as<int32_t>();
  Require(call.total >= call.sequence, "input total_sequence_length is ", call.total,
          ", less than the ", call.sequence, " query rows");
  call.first_prompt = call.sequence == call.total;
  if (call.shared_cache) {
    Require(!Windowed(), "attribute sliding_window_cache=1 needs new keys, but input key is ",
            inputs[kKey].shape);
    Require(call.total <= call.past_capacity, "input total_sequence_length is ", call.total,
            ", but past_key holds ", call.past_capacity,
            " rows; without new keys it must hold all of them");
  }
  return call;
}

void FlowAttentionOp::CheckLengths(Inputs inputs, const Call& call) const {
  const Tensor& seqlens = inputs[kSeqlensK];
  Require(seqlens.type == DataType::kInt32 && !seqlens.shape.empty() &&
              ElementCount(seqlens.shape) == call.batch,
          "input seqlens_k must be int32 (", call.batch, "), got ", NameOf(seqlens.type), " ",
          seqlens.shape);
  const int64_t window = attributes_.local_window_size;
  if (Windowed()) {
    Require(call.past_capacity >= window, "input past_key holds ", call.past_capacity,
            " rows; a sliding-window cache needs at least local_window_size=", window);
  }
  for (int64_t b = 0; b < call.batch; ++b) {
    const int64_t length = int64_t{seqlens.as<int32_t>()[b]} + 1;
    Require(length >= 1 && length <= call.total, "input seqlens_k[", b, "] is ", length - 1,
            ", outside [0, total_sequence_length=", call.total, ")");
    if (call.first_prompt) continue;
    Require(length >= call.sequence, "input seqlens_k[", b, "] is ", length - 1, ", less than the ",
            call.sequence, " query rows less one");
    Require(Windowed() || length - call.sequence <= call.past_capacity, "input seqlens_k[", b,
            "] means ", length - call.sequence, " past tokens, but past_key holds ",
            call.past_capacity, " rows");
  }
}

int64_t FlowAttentionOp::MostPositions(Inputs inputs) const {
  return inputs[kRotaryFrequencies] ? attributes_.rotary_positions : inputs[kCosCache].shape[0];
}

const char* FlowAttentionOp::NameOfMost(Inputs inputs) {
  return inputs[kRotaryFrequencies] ? "the model's " : "cos_cache's ";
}

void FlowAttentionOp::CheckRotary(Inputs inputs, const Call& call) const {
  const Tensor &cos = inputs[kCosCache], &frequencies = inputs[kRotaryFrequencies];
  const DataType type = inputs[kQuery].type;
  if (frequencies) {
    Require(!cos && !inputs[kSinCache] && attributes_.rotary_positions > 0,
            "input rotary_frequencies needs attribute rotary_positions, and no cos_cache and "
            "sin_cache");
    Require(type == DataType::kFloat32, "input rotary_frequencies needs a query of float, got ",
            NameOf(type));
    Require(frequencies.type == type && frequencies.shape.size() == 1 && frequencies.shape[0] > 0 &&
                2 * frequencies.shape[0] <= call.dim,
            "input rotary_frequencies must be float (at most ", call.dim / 2, "), got ",
            NameOf(frequencies.type), " ", frequencies.shape);
  } else {
    Require(cos && inputs[kSinCache],
            "attribute do_rotary=1 needs inputs cos_cache and sin_cache, or rotary_frequencies");
    Require(cos.type == type && cos.shape.size() == 2 && cos.shape[1] > 0 &&
                2 * cos.shape[1] <= call.dim,
            "input cos_cache must be ", NameOf(type), " (max_position, at most ", call.dim / 2,
            "), got ", NameOf(cos.type), " ", cos.shape);
    RequireShape(inputs, kSinCache, type, cos.shape);
  }
  const int64_t pairs = frequencies ? frequencies.shape[0] : cos.shape[1];
  if (attributes_.position_axes == 3) {
    const int64_t height = attributes_.mrope_height, width = attributes_.mrope_width;
    Require(height >= 0 && width >= 0 && height <= pairs && width <= pairs - height,
            "attributes mrope_height=", height, " and mrope_width=", width, " are more than the ",
            pairs, " pairs of channels that are rotated");
  }
  Require(inputs[kPositionIds] || attributes_.position_axes == 0,
          "attribute position_axes=", attributes_.position_axes, " needs input position_ids");
  Require(inputs[kPositionIds] || call.total <= MostPositions(inputs),
          call.by_index ? "the total length " : "total_sequence_length ", call.total, " is beyond ",
          NameOfMost(inputs), MostPositions(inputs), " positions");
}

void FlowAttentionOp::CheckMasks(Inputs inputs, const Call& call) const {
  const auto one_or = [](int64_t dim, int64_t expected) { return dim == expected || dim == 1; };
  if (const Tensor& bias = inputs[kAttentionBias]) {
    const Shape& s = bias.shape;
    const DataType type = inputs[kQuery].type;
    // GroupQueryAttention, which has lengths, has a row for each query.
    const bool rows_fit = s.size() == 4 && (s[2] == call.sequence || (call.by_index && s[2] == 1));
    Require(bias.type == type && rows_fit && one_or(s[0], call.batch) &&
                one_or(s[1], attributes_.num_heads) && s[3] == call.total,
            "input attention_bias must be ", NameOf(type), " (", call.batch, " or 1, ",
            attributes_.num_heads, " or 1, ", call.sequence, call.by_index ? " or 1, " : ", ",
            call.total, "), got ", NameOf(bias.type), " ", s);
  }
  if (inputs[kAttentionMask]) {
    RequireShape(inputs, kAttentionMask, DataType::kInt64, {call.batch, call.total});
  }
}

void FlowAttentionOp::CheckScales(Inputs inputs, const Call& call) const {
  const auto check = [&](Input input, const char* attribute, const std::string& type) {
    const Tensor& scales = inputs[input];
    const char* name = FlowAttention::kInputNames[input];
    if (!Quantised()) {
      Require(!scales, "input ", name, " needs attributes kv_cache_bit_width and ", attribute);
      return;
    }
    Require(scales.present, "attribute ", attribute, "=", type, " needs input ", name);
    const Shape expected =
        IsPerChannel(attribute, type) ? Shape{1, attributes_.kv_num_heads, 1, call.dim} : Shape{1};
    Require(
        scales.type == DataType::kFloat32 && ElementCount(scales.shape) == ElementCount(expected),
        "input ", name, " must be float ", expected, " for ", attribute, "=", type, ", got ",
        NameOf(scales.type), " ", scales.shape);
  };
  check(kKScale, "k_quant_type", attributes_.k_quant_type);
  check(kVScale, "v_quant_type", attributes_.v_quant_type);
}

void FlowAttentionOp::Describe(Inputs inputs, std::span<Output> outputs) const {
  const Call call = Sizes(inputs);
  if (!call.by_index) CheckLengths(inputs, call);
  if (attributes_.do_rotary == 1) CheckRotary(inputs, call);
  CheckPositions(inputs, call);
  CheckMasks(inputs, call);
  const DataType type = inputs[kQuery].type;
  if (inputs[kHeadSink]) RequireShape(inputs, kHeadSink, type, {attributes_.num_heads});
  for (const Input norm : {kQNormWeight, kKNormWeight, kVNormWeight}) {
    if (inputs[norm]) RequireShape(inputs, norm, type, {call.dim});
  }
  CheckScales(inputs, call);
  const int64_t capacity =
      Windowed() ? call.past_capacity : std::max(call.past_capacity, call.total);
  outputs[0] = {type, {call.batch, call.sequence, attributes_.num_heads * call.dim}};
  outputs[1] = outputs[2] = {
      CacheType(inputs), {call.batch, attributes_.kv_num_heads, capacity, CacheWidth(call.dim)}};
}

void FlowAttentionOp::CheckPositions(Inputs inputs, const Call& call) const {
  const Tensor& ids = inputs[kPositionIds];
  if (!ids) return;
  if (attributes_.position_axes == 3) {
    return RequireShape(inputs, kPositionIds, DataType::kInt64, {3, call.batch, call.sequence});
  }
  const Shape one = call.by_index ? Shape{1, call.sequence} : Shape{1};
  const bool one_will_do =
      attributes_.position_axes == 0 && (call.by_index || call.first_prompt) && ids.shape == one;
  Require(ids.type == DataType::kInt64 &&
              (ids.shape == Shape{call.batch, call.sequence} || one_will_do),
          "input position_ids must be int64 (", call.batch, ", ", call.sequence, "), got ",
          NameOf(ids.type), " ", ids.shape);
}

// The positions of all axes, or of the first if they are the same, as they are for text.
void FlowAttentionOp::PlaceAxes(Inputs inputs, AttentionStep& step) const {
  const int64_t max_position = MostPositions(inputs), tokens = step.batch * step.sequence;
  const auto* ids = inputs[kPositionIds].as<int64_t>();
  const auto same = [&](int64_t axis) {
    return std::equal(ids, ids + tokens, ids + axis * tokens);
  };
  step.mixed_positions = attributes_.position_axes == 3 && !(same(1) && same(2));
  step.axes = {attributes_.mrope_height, attributes_.mrope_width,
               attributes_.mrope_interleaved == 1};
  const int64_t count = (step.mixed_positions ? 3 : 1) * tokens;
  for (int64_t i = 0; i < count; ++i) {
    Require(ids[i] >= 0 && ids[i] < max_position, "position ", ids[i], " of batch row ",
            i % tokens / step.sequence, " is outside ", NameOfMost(inputs), max_position,
            " positions");
  }
  step.positions.assign(ids, ids + count);
}

void FlowAttentionOp::PlacePositions(Inputs inputs, const Call& call, AttentionStep& step) const {
  const int64_t max_position = MostPositions(inputs);
  const Tensor& ids = inputs[kPositionIds];
  const int64_t row = ids && ids.shape[0] == call.batch ? call.sequence : 0;
  step.positions.reserve(static_cast<size_t>(call.batch * call.sequence));
  for (int64_t b = 0; b < call.batch; ++b) {
    for (int64_t t = 0; t < call.sequence; ++t) {
      // For a first prompt, GroupQueryAttention reads only the first id.
      const int64_t first = !ids                ? step.past_length[static_cast<size_t>(b)]
                            : call.first_prompt ? ids.as<int64_t>()[0]
                                                : ids.as<int64_t>()[b * row + t];
      const Size position = Size(first) + (!ids || call.first_prompt ? t : 0);
      if (!(position + 1 <= max_position)) {
        Fail(ErrorCode::kInvalidArgument, "position ",
             position.InRange() ? position.As("a position") : first, " of batch row ", b,
             " is outside ", NameOfMost(inputs), max_position, " positions");
      }
      step.positions.push_back(position.As("a position"));
    }
  }
}

void FlowAttentionOp::PlaceTables(Inputs inputs, AttentionStep& step) const {
  const Tensor& given = inputs[kRotaryFrequencies];
  if (!given) {
    step.cos = inputs[kCosCache].data;
    step.sin = inputs[kSinCache].data;
    step.rotary_dim = 2 * inputs[kCosCache].shape[1];
    return;
  }
  const std::span frequencies(given.as<float>(), static_cast<size_t>(given.shape[0]));
  const std::shared_ptr<RotationTable> table =
      rotations_->Of(frequencies, attributes_.rotary_magnitude, attributes_.rotary_positions);
  if (!step.positions.empty()) table->Reach(std::ranges::max(step.positions) + 1);
  step.cos = table->cos();
  step.sin = table->sin();
  step.rotary_dim = 2 * given.shape[0];
  step.rotations = table;
}

void FlowAttentionOp::Append(Inputs inputs, std::span<const Output> outputs,
                             std::span<void* const> buffers, Plan& plan) const {
  const auto& a = attributes_;
  const Call call = Sizes(inputs);
  const Shape& present = outputs[1].shape;
  void *present_key = buffers[1], *present_value = buffers[2];
  if (call.batch == 0) return;
  const Tensor& query = inputs[kQuery];
  std::pmr::memory_resource* memory = plan.steps.get_allocator().resource();
  const auto numbers = [&] { return std::pmr::vector<int64_t>(memory); };
  auto& step = std::get<AttentionStep>(
      plan.steps.emplace_back(AttentionStep{.past_length = numbers(),
                                            .total_length = numbers(),
                                            .positions = numbers(),
                                            .visible_keys = std::pmr::vector<Range>(memory)}));
  step.batch = call.batch;
  step.sequence = call.sequence;
  step.key_sequence = call.key_sequence;
  step.heads = a.num_heads;
  step.kv_heads = a.kv_num_heads;
  step.dim = call.dim;
  step.type = query.type;

  step.query = query.data;
  if (inputs[kKey]) {
    step.query_stride = step.heads * step.dim;
    step.key_stride = step.value_stride = step.kv_heads * step.dim;
    step.key = inputs[kKey].data;
    step.value = inputs[kValue].data;
  } else {  // packed: Q, K and V of a token are adjacent
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
  step.past_capacity = call.past_capacity;
  step.cache_type = a.kv_cache_bit_width == 4 ? DataType::kInt4 : outputs[1].type;
  if (Quantised()) {
    step.key_scales = {inputs[kKScale].as<float>(), a.k_quant_type == "PER_CHANNEL"};
    step.value_scales = {inputs[kVScale].as<float>(), a.v_quant_type == "PER_CHANNEL"};
  }
  Require(call.shared_cache || (present_key != nullptr && present_value != nullptr),
          "outputs present_key and present_value are needed: there are new keys");
  // A shared cache that nobody wants a copy of is read where it is.
  step.present_key = present_key != nullptr ? present_key : const_cast<void*>(step.past_key);
  step.present_value =
      present_value != nullptr ? present_value : const_cast<void*>(step.past_value);
  step.present_capacity = present[2];
  step.windowed_cache = Windowed();

  const auto rows = static_cast<size_t>(step.batch);
  step.past_length.reserve(rows);
  step.total_length.reserve(rows);
  for (int64_t b = 0; b < step.batch; ++b) {
    const int64_t length =
        call.by_index ? call.total : int64_t{inputs[kSeqlensK].as<int32_t>()[b]} + 1;
    step.total_length.push_back(length);
    const int64_t added = call.shared_cache ? call.sequence : call.key_sequence;
    step.past_length.push_back(call.first_prompt ? 0 : length - added);
  }
  const bool carries = call.shared_cache ||
                       std::ranges::any_of(step.past_length, [](int64_t rows) { return rows > 0; });
  if (carries) {
    CheckPlaces("key", past, step.present_key, present);
    CheckPlaces("value", inputs[kPastValue], step.present_value, present);
  }

  step.q_norm = inputs[kQNormWeight] ? inputs[kQNormWeight].data : nullptr;
  step.k_norm = inputs[kKNormWeight] ? inputs[kKNormWeight].data : nullptr;
  step.v_norm = inputs[kVNormWeight] ? inputs[kVNormWeight].data : nullptr;
  step.norm_after_rotary = a.norm_after_rotary == 1;
  step.norm_epsilon = a.qk_norm_epsilon;
  if (a.do_rotary == 1) {
    step.rotary_interleaved = a.rotary_interleaved == 1;
    if (a.position_axes != 0) {
      PlaceAxes(inputs, step);
    } else {
      PlacePositions(inputs, call, step);
    }
    PlaceTables(inputs, step);
  }

  step.scale = a.scale != 0.0f ? a.scale : 1.0f / std::sqrt(static_cast<float>(step.dim));
  step.softcap = a.softcap;
  step.causal = a.causal == 1;
  step.window = a.local_window_size;
  if (const Tensor& bias = inputs[kAttentionBias]) {
    const Shape& s = bias.shape;
    step.bias = bias.data;
    step.bias_row_stride = s[2] == 1 ? 0 : s[3];
    step.bias_head_stride = s[1] == 1 ? 0 : s[2] * s[3];
    step.bias_batch_stride = s[0] == 1 ? 0 : s[1] * s[2] * s[3];
  }
  if (const Tensor& mask = inputs[kAttentionMask]) {
    ApplyMask(mask.as<int64_t>(), call.total, step);
  }
  step.head_sink = inputs[kHeadSink] ? inputs[kHeadSink].data : nullptr;
  step.smooth_softmax = a.smooth_softmax == 1;
  step.float32_products = float32_products_;
  step.output = buffers[0];
  step.kept = kept_;
  step.prompt_chunk = prompt_chunk_;
}

void InferAttention(const ShapeContext& context) {
  using Dim = ShapeContext::Dim;
  const auto query = RequiredInput(context, FlowAttention::kQuery, "query");
  const int64_t heads = context.Int("num_heads", 0), kv_heads = context.Int("kv_num_heads", 0);
  const auto past = context.Input(FlowAttention::kPastKey);
  const auto key = context.Input(FlowAttention::kKey);
  const bool packed = !key;
  const bool known = query.dims.size() == 3;
  const Size all_heads = Size(heads) + Size(packed ? 2 : 0) * kv_heads;
  int64_t dim = -1;
  if (known && query.dims[2].value > 0 && 1 <= all_heads) {
    dim = query.dims[2].value / all_heads.As("a token");
  }
  const Dim batch = known ? query.dims[0] : Dim{};

  context.SetOutput(
      0, {query.type, {batch, known ? query.dims[1] : Dim{}, Dim{dim > 0 ? dim * heads : -1, ""}}});
  // The length of present. Without past and seqlens_k, it is that of the keys of the call. A
  // windowed cache keeps its capacity. Otherwise it is the larger of the past's length and the
  // total, which is known only at run time.
  const bool windowed = context.Int("sliding_window_cache", 0) == 1;
  Dim length{};
  if (windowed && past && past->dims.size() == 4) length = past->dims[2];
  if (!past && !context.Input(FlowAttention::kSeqlensK)) {
    const auto& keys = packed ? query.dims : key->dims;
    if (keys.size() == 3) length = keys[1];
  }
  // A cache of 4 bits has two channels in a byte.
  const int64_t bits = context.Int("kv_cache_bit_width", 0);
  const int64_t cache = bits == 8   ? kOnnxInt8
                        : bits == 4 ? kOnnxUint8
                        : past      ? past->type
                                    : query.type;
  const int64_t width = bits == 4 && dim > 0 ? dim / 2 : dim;
  const ShapeContext::Value present = {
      cache, {batch, DimOf(context, "kv_num_heads"), length, Dim{width, ""}}};
  context.SetOutput(1, present);
  context.SetOutput(2, present);
}

}  // namespace

OpDescription DescribeFlowAttention() {
  return {.name = "FlowAttention",
          .inputs = FlowAttention::kInputCount,
          .required_inputs = 1,
          .outputs = 3,
          .required_outputs = 1,  // without present: a shared cache
          .typed_outputs = 3,
          .attributes = {{.name = "num_heads", .required = true, .least = 1, .most = kMostHeads},
                         {.name = "kv_num_heads", .required = true, .least = 1, .most = kMostHeads},
                         {.name = "do_rotary"},
                         {.name = "rotary_interleaved"},
                         {.name = "local_window_size"},
                         {.name = "smooth_softmax"},
                         {.name = "causal"},
                         {.name = "sliding_window_cache"},
                         {.name = "qk_output"},
                         {.name = "float32_products"},
                         {.name = "position_axes"},
                         {.name = "mrope_height", .least = 0, .most = kMostHeads},
                         {.name = "mrope_width", .least = 0, .most = kMostHeads},
                         {.name = "mrope_interleaved"},
                         {.name = "norm_after_rotary"},
                         {.name = "rotary_positions", .least = 0, .most = kMostPositions},
                         {.name = "kv_cache_bit_width"},
                         FloatAttribute("scale"),
                         FloatAttribute("softcap"),
                         FloatAttribute("rotary_magnitude"),
                         FloatAttribute("qk_norm_epsilon"),
                         TextAttribute("k_quant_type"),
                         TextAttribute("v_quant_type")},
          .create = MakeOp<FlowAttentionOp>,
          .infer = InferAttention,
          .anchor = true};
}

}  // namespace ort_aie
