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
    Values keys = generator.keys, values = generator.values;
    const int64_t before = bench.device->counters().submissions;
    const Values output = generator.On(
        step, generator.keys, generator.values,
        [&](const AttentionStep& device) { bench.Run({projection_->Step(), device}); });
    projection_->Compare(projection_->OnHost());
    const Values want = generator.On(step, keys, values, [](const AttentionStep& host) {
      HostTarget().Execute({host}, kThreads);
    });
    CompareRows(keys, values);
    // Errors of the scores also move weights of a softmax, by up to twice as much.
    if (exact_cache) Near("output", output, want, layer_.dim, 2 * kNear);
    generator.Advance(step);
    return bench.device->counters().submissions - before;
  }

  Generator generator;

 private:
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
