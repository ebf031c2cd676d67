// Attention to queries, keys and values that a projection leaves on the device.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "generator.h"
#include "projection.h"

namespace ort_aie::npu_target {

class ProjectedAttention {
 public:
  // As for Generator; `step` is the inputs' spacing.
  ProjectedAttention(const Layer& layer, int64_t capacity, bool in_place, float step = 0.125f)
      : generator(layer, capacity, in_place), layer_(layer), step_(step) {
    generator.past.assign(static_cast<size_t>(layer.batch), 0);
  }

  // Appends tokens on the device and on the host, and compares; the output, if the device attends
  // to what the cache has. Returns the submissions.
  int64_t Append(const Bench& bench, int64_t tokens, bool exact_cache = true) {
    const int64_t width = (layer_.heads + 2 * layer_.kv_heads) * layer_.dim;
    // A row for each token of a prompt; batch rows' tokens are parts of one row.
    if (tokens != rows_) {
      rows_ = tokens;
      projection_.emplace(ProjectionCase{.rows = tokens,
                                         .k = 256,
                                         .n = tokens > 1 ? width : layer_.batch * width,
                                         .type = layer_.type});
    }
    projection_->a = Values(layer_.type, Exact(tokens * 256, step_));
    AttentionStep step = generator.Step(tokens, {});
    const auto part = [&](int64_t heads) {
      return Advance(projection_->y.data(), layer_.type, heads * layer_.dim);
    };
    step.query = part(0);
    step.key = part(layer_.heads);
    step.value = part(layer_.heads + layer_.kv_heads);
    step.query_stride = step.key_stride = step.value_stride = width;
    const int64_t count = layer_.batch * tokens * layer_.heads * layer_.dim;
    Values output(layer_.type, count), want = output;
    Cache device{generator.keys, generator.values}, host = device;
    AttentionStep own = step;
    const int64_t before = bench.device->counters().submissions;
    device.Place(step, generator, output);
    bench.Run({projection_->Step(), step});
    projection_->Compare(projection_->OnHost());
    host.Place(own, generator, want);
    HostTarget().Execute({own}, kThreads);
    Check(generator.in_place() || (device.keys.bytes == generator.keys.bytes &&
                                   device.values.bytes == generator.values.bytes),
          "the past changed");
    generator.keys = device.present(generator.in_place()).first;
    generator.values = device.present(generator.in_place()).second;
    const auto& [keys, values] = host.present(generator.in_place());
    CompareRows(keys, values);
    // Errors of the scores also move weights of a softmax, by up to twice as much.
    if (exact_cache) Near("output", output, want, layer_.dim, 2 * kNear);
    generator.Advance(step);
    return bench.device->counters().submissions - before;
  }

  Generator generator;

 private:
  struct Cache {
    Values keys, values, new_keys = {}, new_values = {};

    void Place(AttentionStep& step, const Generator& generator, Values& output) {
      if (!generator.in_place()) new_keys = new_values = generator.Rows(step.present_capacity);
      step.past_key = keys.data();
      step.past_value = values.data();
      step.present_key = (generator.in_place() ? keys : new_keys).data();
      step.present_value = (generator.in_place() ? values : new_values).data();
      step.output = output.data();
    }
    std::pair<const Values&, const Values&> present(bool in_place) const {
      if (in_place) return {keys, values};
      return {new_keys, new_values};
    }
  };

  void CompareRows(const Values& keys, const Values& values) const {
    const bool exact = layer_.integers();
    if (!exact) Near("the present's keys", generator.keys, keys, layer_.dim);
    if (!exact && layer_.v_norm) Near("the present's values", generator.values, values, layer_.dim);
    Check(!exact || generator.keys.bytes == keys.bytes, "the present is not the host's");
    Check((!exact && layer_.v_norm) || generator.values.bytes == values.bytes,
          "the present has other values");
  }

  const Layer& layer_;
  const float step_;
  int64_t rows_ = 0;
  std::optional<Projection> projection_;
};

}  // namespace ort_aie::npu_target
