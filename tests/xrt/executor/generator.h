// A layer's attention, and a user of it that generates tokens.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bench.h"
#include "targets/host/attention_inputs.h"

namespace ort_aie::npu_target {

struct Layer {
  int64_t batch = 1, heads = 4, kv_heads = 2, dim = 64;
  DataType type = DataType::kFloat32, cache_type = DataType::kBfloat16;
  int64_t window = 0;
  float softcap = 0;
  bool causal = true, rotary = false, interleaved = false, qk_norm = false, sinks = false;
  bool k_norm = false;  // without that of queries
  bool v_norm = false, norm_after_rotary = false, mixed_positions = false;
  int64_t rotary_dim = 0;       // of the rotary; 0: all
  bool windowed_cache = false;  // past and present hold as many rows as a generator's capacity
  std::vector<int64_t> padding = {};  // hidden keys before each batch row's
  bool per_channel = false;           // scales of a cache of integers
  bool integers() const { return cache_type == DataType::kInt8 || cache_type == DataType::kInt4; }
  std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();
};

// One user of a layer's attention, with a separate cache.
class Generator {
 public:
  // With `capacity`, past and present are one buffer; without, every call has a new present.
  explicit Generator(const Layer& layer, int64_t capacity = 0)
      : Generator(layer, capacity, capacity > 0) {}
  Generator(const Layer& layer, int64_t capacity, bool in_place)
      : layer_(layer), in_place_(in_place), capacity_(capacity) {
    if (capacity > 0) {
      keys = Rows(capacity);
      std::ranges::fill(keys.bytes, uint8_t{0});
      values = keys;
    }
    if (layer.integers()) {
      const std::vector<float> steps = {0.125f, 0.25f, 0.0625f};
      scales_.resize(static_cast<size_t>(layer.per_channel ? layer.kv_heads * layer.dim : 1));
      for (size_t i = 0; i < scales_.size(); ++i) scales_[i] = steps[i % steps.size()];
    }
    if (layer.rotary) {
      std::vector<float> cos, sin;
      for (int64_t p = 0; p < kPositions; ++p) {
        for (int64_t i = 0; i < RotaryDim() / 2; ++i) {
          cos.push_back(std::cos(0.01f * static_cast<float>(p * (i + 1))));
          sin.push_back(std::sin(0.01f * static_cast<float>(p * (i + 1))));
        }
      }
      cos_ = Values(layer.type, cos);
      sin_ = Values(layer.type, sin);
    }
    if (layer.sinks) sinks_ = Values(layer.type, Exact(layer.heads));
    if (layer.qk_norm) q_norm_ = Values(layer.type, Exact(layer.dim));
    if (layer.qk_norm || layer.k_norm) k_norm_ = Values(layer.type, Exact(layer.dim));
    if (layer.v_norm) v_norm_ = Values(layer.type, Exact(layer.dim));
  }

  // Appends tokens after the past, here and on the host target, and compares the results.
  // `lengths`: those of the batch rows, if they differ.
  void Append(const Target& target, int64_t tokens, std::vector<int64_t> lengths = {}) {
    if (past.empty()) past.assign(static_cast<size_t>(layer_.batch), 0);
    AttentionStep step = Step(tokens, lengths);
    const Values query(layer_.type, Exact(layer_.batch * tokens * layer_.heads * layer_.dim));
    const Values key(layer_.type, Exact(layer_.batch * tokens * layer_.kv_heads * layer_.dim));
    const Values value(layer_.type, Exact(layer_.batch * tokens * layer_.kv_heads * layer_.dim));
    step.query = query.data();
    step.key = key.data();
    step.value = value.data();
    Values want_keys = keys, want_values = values;
    const Values want = On(step, want_keys, want_values, [](const AttentionStep& host) {
      HostTarget().Execute({host}, kThreads);
    });
    const Values output = On(step, keys, values, [&](const AttentionStep& device) {
      target.Execute({device}, kThreads);
    });
    Check(keys.bytes == want_keys.bytes && values.bytes == want_values.bytes,
          "the present is not the host's");
    Advance(step);
    std::vector<float> right = want.floats();
    const auto width = static_cast<size_t>(layer_.heads * layer_.dim);
    for (size_t token = 0; token < right.size() / width; ++token) {
      const size_t b = token / static_cast<size_t>(tokens), t = token % static_cast<size_t>(tokens);
      const int64_t position = step.past_length[b] + static_cast<int64_t>(t);
      const int64_t hidden = layer_.padding.empty() || !layer_.causal ? 0 : layer_.padding[b];
      if (position >= hidden && position < step.total_length[b]) continue;
      std::fill_n(right.data() + token * width, width, 0.0f);  // padding
    }
    Near("output", output, Values(layer_.type, right), layer_.dim);
  }

  // Executes a step on a past, which becomes its present, and gives its output.
  template <typename Execute>
  Values On(AttentionStep step, Values& past_keys, Values& past_values,
            const Execute& execute) const {
    Values output(layer_.type, step.batch * step.sequence * layer_.heads * layer_.dim);
    Values new_keys = Rows(step.present_capacity), new_values = new_keys;
    const Values old_keys = past_keys, old_values = past_values;
    step.past_key = past_keys.data();
    step.past_value = past_values.data();
    step.present_key = (in_place_ ? past_keys : new_keys).data();
    step.present_value = (in_place_ ? past_values : new_values).data();
    step.output = output.data();
    execute(step);
    if (in_place_) return output;
    Check(past_keys.bytes == old_keys.bytes && past_values.bytes == old_values.bytes,
          "the past changed");
    past_keys = std::move(new_keys);
    past_values = std::move(new_values);
    return output;
  }

  AttentionStep Step(int64_t tokens, std::vector<int64_t> lengths) const {
    AttentionStep step{};
    step.batch = layer_.batch;
    step.sequence = step.key_sequence = tokens;
    step.heads = layer_.heads;
    step.kv_heads = layer_.kv_heads;
    step.dim = layer_.dim;
    step.type = layer_.type;
    step.query_stride = layer_.heads * layer_.dim;
    step.key_stride = step.value_stride = layer_.kv_heads * layer_.dim;
    step.cache_type = layer_.cache_type;
    step.past_length.assign(past.begin(), past.end());
    if (lengths.empty()) lengths.assign(past.size(), tokens);
    for (size_t b = 0; b < past.size(); ++b) step.total_length.push_back(past[b] + lengths[b]);
    const int64_t longest = *std::ranges::max_element(past) + tokens;
    step.past_capacity = capacity_;
    step.present_capacity =
        in_place_ || layer_.windowed_cache ? capacity_ : std::max(capacity_, longest);
    step.windowed_cache = layer_.windowed_cache;
    for (size_t b = 0; b < layer_.padding.size(); ++b) {
      step.visible_keys.push_back({layer_.padding[b], step.total_length[b]});
    }
    if (!scales_.empty()) {
      step.key_scales = step.value_scales = {scales_.data(), layer_.per_channel};
    }
    step.scale = 0.125f;
    step.softcap = layer_.softcap;
    step.causal = layer_.causal;
    step.window = layer_.window;
    step.kept = layer_.kept;
    if (layer_.sinks) step.head_sink = sinks_.data();
    if (layer_.qk_norm) step.q_norm = q_norm_.data();
    if (layer_.qk_norm || layer_.k_norm) step.k_norm = k_norm_.data();
    if (layer_.v_norm) step.v_norm = v_norm_.data();
    step.norm_epsilon = 1e-5f;
    step.norm_after_rotary = layer_.norm_after_rotary;
    if (layer_.rotary) {
      step.cos = cos_.data();
      step.sin = sin_.data();
      step.rotary_dim = RotaryDim();
      step.rotary_interleaved = layer_.interleaved;
      for (const int64_t first : past) {
        for (int64_t t = 0; t < tokens; ++t) step.positions.push_back(first + t);
      }
      if (layer_.mixed_positions) {  // as of a picture whose rows are seven patches
        step.mixed_positions = true;
        step.axes = {.height = 5, .width = 9, .interleaved = layer_.interleaved};
        const auto times = step.positions;
        for (const int64_t t : times) step.positions.push_back(t / 7);
        for (const int64_t t : times) step.positions.push_back(t % 7);
      }
    }
    return step;
  }

  // `keys` and `values` are now the step's present.
  void Advance(const AttentionStep& step) {
    capacity_ = step.present_capacity;
    past.assign(step.total_length.begin(), step.total_length.end());
  }

  int64_t Elements(int64_t capacity) const {
    return layer_.batch * layer_.kv_heads * capacity * layer_.dim;
  }
  Values Rows(int64_t capacity) const {
    Values rows;
    rows.type = layer_.cache_type;
    rows.bytes.assign(static_cast<size_t>(BytesOf(rows.type, Elements(capacity))), 0xab);
    return rows;
  }

  std::vector<int64_t> past;
  Values keys, values;

 private:
  static constexpr int64_t kPositions = 1024;

  int64_t RotaryDim() const { return layer_.rotary_dim != 0 ? layer_.rotary_dim : layer_.dim; }

  const Layer& layer_;
  const bool in_place_;
  int64_t capacity_;
  Values cos_, sin_, q_norm_, k_norm_, v_norm_, sinks_;
  std::vector<float> scales_;
};

}  // namespace ort_aie::npu_target
