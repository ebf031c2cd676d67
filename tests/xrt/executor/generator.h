// A layer's attention, and one who generates tokens with it.
#pragma once

#include <memory>
#include <vector>

#include "bench.h"

namespace ort_aie::xrt {

struct Layer {
  int64_t batch = 1, heads = 4, kv_heads = 2, dim = 64;
  DataType type = DataType::kFloat32, cache_type = DataType::kBfloat16;
  int64_t window = 0;
  float softcap = 0;
  bool causal = true, rotary = false;
  std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();
};

// One user of a layer's attention: has a cache of its own.
class Generator {
 public:
  // With `capacity`, past and present are one buffer; without, every call has a new present.
  explicit Generator(const Layer& layer, int64_t capacity = 0)
      : layer_(layer), in_place_(capacity > 0), capacity_(capacity) {
    if (in_place_) {
      const std::vector<float> zeros(static_cast<size_t>(Elements(capacity)));
      keys = Values(layer.cache_type, zeros);
      values = keys;
    }
    if (layer.rotary) {
      std::vector<float> cos, sin;
      for (int64_t p = 0; p < 256; ++p) {
        for (int64_t i = 0; i < layer.dim / 2; ++i) {
          cos.push_back(std::cos(0.01f * static_cast<float>(p * (i + 1))));
          sin.push_back(std::sin(0.01f * static_cast<float>(p * (i + 1))));
        }
      }
      cos_ = Values(layer.type, cos);
      sin_ = Values(layer.type, sin);
    }
  }

  // Appends tokens, after `past` of those before, here and on the host target, and compares.
  // `lengths`: of the batch rows, where they differ.
  void Append(const Target& target, int64_t tokens, std::vector<int64_t> lengths = {}) {
    if (past.empty()) past.assign(static_cast<size_t>(layer_.batch), 0);
    AttentionStep step = Step(tokens, lengths);
    const Values query(layer_.type, Exact(layer_.batch * tokens * layer_.heads * layer_.dim));
    const Values key(layer_.type, Exact(layer_.batch * tokens * layer_.kv_heads * layer_.dim));
    const Values value(layer_.type, Exact(layer_.batch * tokens * layer_.kv_heads * layer_.dim));
    step.query = query.data();
    step.key = key.data();
    step.value = value.data();
    Values output(layer_.type, layer_.batch * tokens * layer_.heads * layer_.dim);
    Values want = output, want_keys = keys, want_values = values, old_keys = keys,
           old_values = values;
    Values present_keys(layer_.cache_type, Elements(step.present_capacity));
    Values present_values = present_keys;

    AttentionStep host = step;
    host.output = want.data();
    Place(host, want_keys, want_values, present_keys, present_values);
    HostTarget().Execute({host}, kThreads);
    if (!in_place_) std::swap(want_keys, present_keys), std::swap(want_values, present_values);

    present_keys = Values(layer_.cache_type, Elements(step.present_capacity));
    present_values = present_keys;
    step.output = output.data();
    Place(step, keys, values, present_keys, present_values);
    target.Execute({step}, kThreads);
    if (!in_place_) {
      Check(keys.bytes == old_keys.bytes && values.bytes == old_values.bytes, "the past changed");
      keys = present_keys;
      values = present_values;
      capacity_ = step.present_capacity;
    }
    Check(keys.bytes == want_keys.bytes && values.bytes == want_values.bytes,
          "the present is not the host's");
    past = step.total_length;
    // Rotated queries are rounded, by a unit: scores of 64 products change by a unit of sum |q k| /
    // 8, about 64 * 0.87 / 8, so what exp(score) weighs by twice that, and values are below 2.
    const double absolute = layer_.rotary ? 2 * (std::exp(2 * 7 * kUnit) - 1) : 1e-3;
    const std::vector<float> got = output.floats(), right = want.floats();
    for (int64_t b = 0; b < layer_.batch; ++b) {
      const int64_t width = layer_.heads * layer_.dim;
      const int64_t valid =
          step.total_length[static_cast<size_t>(b)] - step.past_length[static_cast<size_t>(b)];
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = (b * tokens + t) * width; i < (b * tokens + t + 1) * width; ++i) {
          const float expected = t < valid ? right[static_cast<size_t>(i)] : 0;
          const double bound = absolute + kUnit * std::abs(expected);
          Check(std::abs(got[static_cast<size_t>(i)] - expected) <= bound, "output row ", t,
                " of batch row ", b, " after ", step.past_length[static_cast<size_t>(b)], ": got ",
                got[static_cast<size_t>(i)], ", expected ", expected);
        }
      }
    }
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
    step.past_length = past;
    if (lengths.empty()) lengths.assign(past.size(), tokens);
    for (size_t b = 0; b < past.size(); ++b) step.total_length.push_back(past[b] + lengths[b]);
    const int64_t longest = *std::ranges::max_element(past) + tokens;
    step.past_capacity = capacity_;
    step.present_capacity = in_place_ ? capacity_ : std::max(capacity_, longest);
    step.scale = 0.125f;
    step.softcap = layer_.softcap;
    step.causal = layer_.causal;
    step.window = layer_.window;
    step.kept = layer_.kept;
    if (layer_.rotary) {
      step.cos = cos_.data();
      step.sin = sin_.data();
      step.rotary_dim = layer_.dim;
      for (const int64_t first : past) {
        for (int64_t t = 0; t < tokens; ++t) step.positions.push_back(first + t);
      }
    }
    return step;
  }

  std::vector<int64_t> past;
  Values keys, values;

 private:
  int64_t Elements(int64_t capacity) const {
    return layer_.batch * layer_.kv_heads * capacity * layer_.dim;
  }
  void Place(AttentionStep& step, Values& past_keys, Values& past_values, Values& present_keys,
             Values& present_values) const {
    step.past_key = past_keys.data();
    step.past_value = past_values.data();
    step.present_key = in_place_ ? past_keys.data() : present_keys.data();
    step.present_value = in_place_ ? past_values.data() : present_values.data();
  }

  const Layer& layer_;
  const bool in_place_;
  int64_t capacity_;
  Values cos_, sin_;
};

}  // namespace ort_aie::xrt
