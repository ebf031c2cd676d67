// A decoder layer as steps of one plan, and its tensors compared with the host's.
#pragma once

#include <utility>
#include <vector>

#include "attention_bounds.h"
#include "bench.h"
#include "generator.h"
#include "projection.h"
#include "targets/npu/kv_copies.h"

namespace ort_aie::npu_target {

struct LayerShape {
  Layer attention{.rotary = true};
  int64_t hidden = 256, intermediate = 512;
  bool packed = true;  // one projection to queries, keys and values; else three
  bool bias = false;   // of O
  bool skip = false;   // the layer begins with the sum of two tensors; packed only
};

// The layer: norm, queries, keys and values; attention; O; residual, norm and gated MLP; down.
class TestedLayer {
 public:
  TestedLayer(const LayerShape& shape, int64_t capacity)
      : TestedLayer(shape, capacity, capacity > 0) {}
  TestedLayer(const LayerShape& shape, int64_t capacity, bool in_place)
      : shape_(shape),
        generator(shape_.attention, capacity, in_place),
        o({.k = Queries(), .n = shape.hidden, .type = Type(), .bias = shape.bias}),
        mlp({.k = shape.hidden,
             .n = shape.intermediate,
             .type = Type(),
             .norm = true,
             .skip = true,
             .gated = true}),
        down({.k = shape.intermediate, .n = shape.hidden, .type = Type()}),
        output(Type(), Queries()) {
    std::vector<int64_t> widths = {Queries(), Keys(), Keys()};
    if (shape.packed) widths = {Queries() + 2 * Keys()};
    for (const int64_t n : widths) {
      qkv.emplace_back(ProjectionCase{
          .k = shape.hidden, .n = n, .type = Type(), .norm = true, .skip = shape.skip});
      qkv.back().norm = qkv.front().norm;
    }
    generator.past = {0};
  }
  TestedLayer(const TestedLayer&) = delete;

  // The steps of a token x, added to `sum` if the layer begins with one; an earlier step of the
  // plan may write either tensor.
  Plan Steps(const Values& x, const Values* sum = nullptr) {
    x_ = &x;
    sum_ = sum;
    before_ = {generator.keys, generator.values};
    Plan plan;
    for (Projection& projection : qkv) {
      projection.y = Values(Type(), projection.c.n);
      MatMulStep step = projection.Step();
      step.a = x.data();
      step.norm_weight = qkv.front().norm.data();
      if (sum != nullptr) step.skip = sum->data();
      plan.steps.push_back(step);
    }
    output = Values(Type(), Queries());
    present_ = NewPresent();
    plan.steps.push_back(attention_ =
                             Attention(generator.keys, generator.values, present_, output));
    for (auto [projection, a] : {std::pair{&o, &output}, {&mlp, &o.y}, {&down, &mlp.y}}) {
      projection->y = Values(Type(), projection->c.n);
      MatMulStep step = projection->Step();
      step.a = a->data();
      if (projection->c.skip) step.skip = Residual().data();
      plan.steps.push_back(step);
    }
    return plan;
  }

  // Call this when the device has executed the plan. Compares every step with the host's, from the
  // tensors that the plan left before it, which are exact in bfloat16.
  void Compare(const Arithmetic& arithmetic = {}) {
    CompareProjections(arithmetic);
    CompareAttention(arithmetic);
  }

  void CompareProjections(const Arithmetic& arithmetic = {}) {
    for (Projection& projection : qkv) {
      projection.a = *x_;
      if (shape_.skip) {
        projection.skip = *sum_;
        projection.CompareRounded(projection.OnHost(), arithmetic);
      } else {
        projection.Compare(projection.OnHost(), {}, arithmetic);
      }
    }
    o.a = output;
    o.Compare(o.OnHost(), {}, arithmetic);
    mlp.a = o.y;
    mlp.skip = Residual();
    mlp.CompareRounded(mlp.OnHost(), arithmetic);
    down.a = mlp.y;
    down.Compare(down.OnHost(), {}, arithmetic);
  }

  // After this, the cache is that of the next token.
  void CompareAttention(const Arithmetic& arithmetic = {}) {
    const Layer& layer = shape_.attention;
    Values want(Type(), Queries());
    Cache past = before_, present = NewPresent();
    const AttentionStep host = Attention(past.keys, past.values, present, want);
    HostTarget().Execute({host}, kThreads);
    if (generator.in_place()) {
      present = past;
    } else {
      Check(generator.keys.bytes == before_.keys.bytes &&
                generator.values.bytes == before_.values.bytes,
            "the past changed");
      generator.keys = present_.keys;
      generator.values = present_.values;
    }
    // The device rounds a normalised head, cosines and sines, and the rotated result; the host's
    // key is rounded once. The device also rounds a norm's weight if heads have zeros behind them.
    const bool padded = PaddedHeadDim(layer.dim) != layer.dim;
    const int roundings =
        layer.qk_norm + (layer.rotary ? 2 : layer.qk_norm) + (layer.qk_norm && padded);
    const double own = arithmetic.rotation + (layer.qk_norm ? arithmetic.norm : 0);
    const double query = Roundings(roundings) + own, key = Roundings(roundings + 1) + own;
    Near("output", output, want, AttentionBounds(host, query, key, arithmetic));
    Check(generator.values.bytes == present.values.bytes,
          "the present's values are not the host's");
    const std::vector<float> right = present.keys.floats();
    std::vector<double> bounds(right.size());
    for (int64_t head = 0; head < layer.kv_heads; ++head) {
      const int64_t first =
          (head * host.present_capacity + host.past_length[0] - Dropped(host, 0)) * layer.dim;
      for (int64_t d = 0; d < layer.dim; ++d) {
        bounds[static_cast<size_t>(first + d)] = key * PairLength(host, right.data() + first, d);
      }
    }
    Near("the present's keys", generator.keys, present.keys, bounds);
    generator.Advance(attention_);
  }

 private:
  const LayerShape shape_;

 public:
  Generator generator;
  std::vector<Projection> qkv;
  Projection o, mlp, down;
  Values output;  // of attention

 private:
  DataType Type() const { return shape_.attention.type; }
  int64_t Queries() const { return shape_.attention.heads * shape_.attention.dim; }
  int64_t Keys() const { return shape_.attention.kv_heads * shape_.attention.dim; }
  const Values& Residual() const { return shape_.skip ? qkv.front().sum : *x_; }

  struct Cache {
    Values keys, values;
  };

  // For a cache that is not in place.
  Cache NewPresent() const {
    if (generator.in_place()) return {};
    const Values tensor = generator.Rows(generator.Step(1, {}).present_capacity);
    return {tensor, tensor};
  }

  AttentionStep Attention(Values& keys, Values& values, Cache& present, Values& to) {
    AttentionStep step = generator.Step(1, {});
    const auto part = [&](size_t projection, int64_t first) {
      return host::Advance(qkv[projection].y.data(), Type(), first);
    };
    if (shape_.packed) {
      step.query = part(0, 0);
      step.key = part(0, Queries());
      step.value = part(0, Queries() + Keys());
      step.query_stride = step.key_stride = step.value_stride = Queries() + 2 * Keys();
    } else {
      step.query = part(0, 0);
      step.key = part(1, 0);
      step.value = part(2, 0);
    }
    step.past_key = keys.data();
    step.past_value = values.data();
    step.present_key = (generator.in_place() ? keys : present.keys).data();
    step.present_value = (generator.in_place() ? values : present.values).data();
    step.output = to.data();
    return step;
  }

  const Values *x_ = nullptr, *sum_ = nullptr;
  Cache before_, present_;  // the cache before and after
  AttentionStep attention_;
};

}  // namespace ort_aie::npu_target
