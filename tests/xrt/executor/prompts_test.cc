// Attention of prompts whose queries, keys and values a projection leaves on the device.
#include "generator.h"
#include "projection.h"
#include "targets/npu/kv_copies.h"
#include "targets/npu/schedule/reasons.h"

namespace ort_aie::npu_target {
namespace {

// A packed projection to queries, keys and values, and attention to them.
class ProjectedAttention {
 public:
  ProjectedAttention(const Layer& layer, int64_t capacity, bool in_place)
      : layer_(layer),
        width_((layer.heads + 2 * layer.kv_heads) * layer.dim),
        generator(layer, capacity, in_place) {
    generator.past = {0};
  }

  // Appends tokens on the device and on the host, and compares. Returns the submissions.
  int64_t Append(const Bench& bench, int64_t tokens) {
    Projection projection({.rows = tokens, .k = 256, .n = width_, .type = layer_.type});
    AttentionStep step = generator.Step(tokens, {});
    const auto part = [&](int64_t heads) {
      return host::Advance(projection.y.data(), layer_.type, heads * layer_.dim);
    };
    step.query = part(0);
    step.key = part(layer_.heads);
    step.value = part(layer_.heads + layer_.kv_heads);
    step.query_stride = step.key_stride = step.value_stride = width_;
    Values output(layer_.type, tokens * layer_.heads * layer_.dim), want = output;
    Values past_keys = generator.keys, past_values = generator.values;
    Values keys = generator.Rows(step.present_capacity), values = keys;
    AttentionStep host = step;
    const auto place = [&](AttentionStep& of, Values& old_keys, Values& old_values,
                           Values& new_keys, Values& new_values) {
      of.past_key = old_keys.data();
      of.past_value = old_values.data();
      of.present_key = generator.in_place() ? old_keys.data() : new_keys.data();
      of.present_value = generator.in_place() ? old_values.data() : new_values.data();
    };
    Values device_keys = keys, device_values = values;
    place(step, generator.keys, generator.values, device_keys, device_values);
    step.output = output.data();
    const int64_t before = bench.device->counters().submissions;
    bench.Run({projection.Step(), step});
    const int64_t submissions = bench.device->counters().submissions - before;
    projection.Compare(projection.OnHost());

    place(host, past_keys, past_values, keys, values);
    host.output = want.data();
    HostTarget().Execute({host}, kThreads);
    if (!generator.in_place()) {
      std::swap(generator.keys, device_keys);
      std::swap(generator.values, device_values);
    } else {
      std::swap(keys, past_keys);
      std::swap(values, past_values);
    }
    CompareRows(host, keys, values);
    if (!layer_.windowed_cache) {
      Near("output", output, want,
           AttentionBounds(host, Roundings(Made()), Roundings(1 + Made()), {},
                           layer_.v_norm ? Roundings(2) : 0));
    }
    generator.Advance(step);
    return submissions;
  }

 private:
  const Layer& layer_;
  const int64_t width_;

 public:
  Generator generator;

 private:
  // The device rounds a normalised head, cosines and sines, and the rotated result; the host's key
  // is rounded once.
  int Made() const { return layer_.qk_norm + (layer_.rotary ? 2 : layer_.qk_norm); }

  void CompareRows(const AttentionStep& host, const Values& keys, const Values& values) const {
    const double key = Roundings(1 + Made()), value = layer_.v_norm ? Roundings(2) : 0;
    std::vector<double> bounds;
    const std::vector<float> right = keys.floats();
    for (size_t i = 0; i < right.size(); ++i) {
      const auto d = static_cast<int64_t>(i) % layer_.dim;
      const float* head = right.data() + (static_cast<int64_t>(i) - d);
      bounds.push_back(key * PairLength(host, head, d));
    }
    Near("the present's keys", generator.keys, keys, bounds);
    bounds.clear();
    for (const float v : values.floats()) bounds.push_back(value * std::abs(v));
    Near("the present's values", generator.values, values, bounds);
  }
};

const Layer kRotary{.rotary = true};

void PromptsPreparedOnTheDevice() {
  Layer normed = kRotary, wide = kRotary, half = kRotary, window = kRotary;
  normed.qk_norm = normed.v_norm = true;
  wide.heads = 2;
  wide.kv_heads = 1;
  wide.dim = 256;
  wide.interleaved = true;
  half.type = half.cache_type = DataType::kFloat16;
  half.rotary_dim = 32;
  window.window = 70;
  for (const Layer& layer :
       std::vector<Layer>{{},
                          kRotary,
                          normed,
                          wide,
                          half,
                          window,
                          {.heads = 3, .kv_heads = 3, .dim = 128},
                          {.window = 40, .rotary = true, .windowed_cache = true}}) {
    for (const bool in_place : {false, true}) {
      for (const int64_t tokens : {64, 72, 101}) {
        Bench bench;
        const int64_t capacity = layer.windowed_cache ? 50 : in_place ? 400 : 0;
        ProjectedAttention attention(layer, capacity, in_place);
        Check(attention.Append(bench, tokens) == 1, "a prompt is one submission");
        Check(bench.target->counters().cache_rows_sent == 0, "the device appends");
        const auto appended = std::ranges::count(bench.device->sequences, "append_rows");
        Check(appended == 2, "keys and values, got ", appended);
        // A token continues with what the device has.
        attention.Append(bench, 1);
        Check(bench.target->counters().cache_rows_sent == 0, "the device has the prompt's rows");
        Check(bench.lines.empty(), "reported: ", bench.lines.empty() ? "" : bench.lines[0]);
      }
    }
  }
}

// What the device has after a prompt is what the host has: nothing is sent for the next one.
void PromptsAfterPrompts() {
  Bench bench;
  ProjectedAttention attention(kRotary, 400, true);
  for (const int64_t tokens : {64, 72, 104}) {  // which fit in the copy's first 256 rows
    Check(attention.Append(bench, tokens) == 1, "a prompt is one submission");
  }
  Check(bench.target->counters().cache_rows_sent == 0, "the device appends");
  Check(bench.target->counters().host_steps_between.empty(), "nothing divides it");
}

void PromptsThatTheHostPrepares() {
  Layer other{.dim = 80}, mixed = kRotary, behind = kRotary;
  mixed.mixed_positions = true;
  behind.qk_norm = behind.norm_after_rotary = true;
  struct Case {
    Layer layer;
    int64_t before, tokens;
    Reason reason;
  };
  for (const Case& c : {Case{kRotary, 0, 63, Reason::kFewKeys},
                        {kRotary, 3, 64, Reason::kUnalignedKeys},
                        {other, 0, 64, Reason::kOtherHeads},
                        {mixed, 0, 64, Reason::kHostPrepares},
                        {behind, 0, 64, Reason::kHostPrepares}}) {
    Bench bench;
    ProjectedAttention attention(c.layer, 400, true);
    if (c.before > 0) attention.generator.Append(*bench.target, c.before);
    Check(attention.Append(bench, c.tokens) == 2, "the host between two submissions");
    const auto between = bench.target->counters().host_steps_between;
    Check(between == std::map<std::string, int64_t>{{Words(c.reason), 1}}, "the reason is ",
          between.empty() ? "none" : between.begin()->first);
  }
}

const Cases kPromptCases({
    {"prompts_prepared_on_the_device", PromptsPreparedOnTheDevice},
    {"prompts_after_prompts", PromptsAfterPrompts},
    {"prompts_that_the_host_prepares", PromptsThatTheHostPrepares},
});

}  // namespace
}  // namespace ort_aie::npu_target
