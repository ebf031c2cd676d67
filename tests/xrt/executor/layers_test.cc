// Which plans of tokens run on whole layers, and what becomes of those whose layers fail. The
// results of the overlay `fused_layer` are in tests/xrt/test_token_layers.py.
#include "targets/npu/schedule/layers.h"

#include <functional>

#include "decoder.h"
#include "targets/npu/schedule/reasons.h"

namespace ort_aie::npu_target {
namespace {

using Reasons = std::map<std::string, int64_t>;

const Family kWhole = {.name = "whole", .packed = true, .qk_norm = true, .kv_heads = 4};
const Designs kWithLayers = {"decode", "fused_layer", "dequant", "gemm", "flow_qkv"};

template <typename T>
T& Nth(Plan& plan, int n) {
  for (Step& step : plan.steps) {
    T* const found = std::get_if<T>(&step);
    if (found != nullptr && n-- == 0) return *found;
  }
  throw std::logic_error("no such step");
}

// The projections of a layer are queries, keys and values; output; gate and up; down.
void PlansThatDoNotRunWhole() {
  const WholeDecoder::Model model(kWhole, 2);
  const Bench bench(kWithLayers);
  Values constant(WholeDecoder::kType, 2048), elsewhere(WholeDecoder::kType, 2048);
  const auto find = [&](const std::function<void(Plan&)>& change) {
    WholeDecoder decoder(model, true);
    Plan plan = decoder.Token(7);
    change(plan);
    const FoundDecoder found = FindDecoder(*bench.device->Overlay("fused_layer"), plan,
                                           [](const Step&) { return Reason::kNone; });
    return std::pair(found.decoder.has_value(), found.why_not);
  };
  using Found = std::pair<bool, std::string>;
  Check(find([](Plan&) {}) == Found{true, ""}, "it runs whole");
  const auto without_attention = [](Plan& plan) {
    std::erase_if(plan.steps,
                  [](const Step& step) { return std::holds_alternative<AttentionStep>(step); });
  };
  Check(find(without_attention) == Found{false, ""}, "it says nothing without attention");
  const std::pair<LayerReason, std::function<void(Plan&)>> changes[] = {
      {LayerReason::kNoPlan, [](Plan& plan) { plan.kept = nullptr; }},
      {LayerReason::kSeveralSequences,
       [](Plan& plan) {
         for (int i = 0; i < 2; ++i) Nth<AttentionStep>(plan, i).batch = 2;
       }},
      {LayerReason::kNotStandard, [](Plan& plan) { plan.steps.pop_back(); }},
      {LayerReason::kBias, [&](Plan& plan) { Nth<MatMulStep>(plan, 1).bias = constant.data(); }},
      {LayerReason::kBias, [&](Plan& plan) { Nth<MatMulStep>(plan, 7).bias = constant.data(); }},
      {LayerReason::kBias, [&](Plan& plan) { Nth<MatMulStep>(plan, 8).bias = constant.data(); }},
      {LayerReason::kQuantisedCache,
       [](Plan& plan) {
         static const float scales[4] = {};
         Nth<AttentionStep>(plan, 1).key_scales = {.data = scales};
       }},
      {LayerReason::kHeadNorms, [](Plan& plan) { Nth<AttentionStep>(plan, 1).k_norm = nullptr; }},
      {LayerReason::kHeadNorms,
       [&](Plan& plan) { Nth<AttentionStep>(plan, 1).v_norm = constant.data(); }},
      {LayerReason::kPositions,
       [](Plan& plan) { Nth<AttentionStep>(plan, 0).mixed_positions = true; }},
      {LayerReason::kEpsilons, [](Plan& plan) { Nth<MatMulStep>(plan, 2).norm_epsilon = 1e-3f; }},
      {LayerReason::kEpsilons,
       [](Plan& plan) { Nth<AttentionStep>(plan, 1).norm_epsilon = 1e-3f; }},
      // An output of the model, or what a later step reads.
      {LayerReason::kInnerValue,
       [&](Plan& plan) {
         Nth<MatMulStep>(plan, 6).sum = elsewhere.data();
         Nth<MatMulStep>(plan, 8).skip = elsewhere.data();
       }},
      {LayerReason::kInnerValue,
       [&](Plan& plan) {
         plan.steps.push_back(CastStep{.count = 4,
                                       .x = Nth<MatMulStep>(plan, 7).y,
                                       .from = WholeDecoder::kType,
                                       .y = elsewhere.data(),
                                       .to = WholeDecoder::kType});
       }},
  };
  for (const auto& [reason, change] : changes) {
    const auto [whole, got] = find(change);
    Check(!whole && got.starts_with(Words(reason)), "\"", got, "\", expected \"", Words(reason),
          "\"");
  }
}

// A token on a device whose layers fail has the bits of the overlay `decode`.
struct Tokens {
  explicit Tokens(const Bench& bench) : bench(bench) {}

  void Next() {
    const int64_t id = 37 * count++ + 5;
    bench.Run(device.Token(id));
    other.Run(decode.Token(id));
    Check(device.logits.bytes == decode.logits.bytes, "other logits of token ", count);
    device.Advance();
    decode.Advance();
    for (size_t i = 0; i < device.caches.size(); ++i) {
      Check(device.caches[i].keys.bytes == decode.caches[i].keys.bytes &&
                device.caches[i].values.bytes == decode.caches[i].values.bytes,
            "another cache of token ", count);
    }
  }

  const Bench& bench;
  const Bench other;
  const WholeDecoder::Model model{kWhole, 2};
  WholeDecoder device{model, true}, decode{model, true};
  int64_t count = 0;
};

bool IsWhole(const npu::Invocations& plan) { return plan.front().sequence == "layer"; }

void RefusedLayersRunStepByStep() {
  const Bench bench(kWithLayers);
  bench.device->before_plan = [](const npu::Invocations& plan) {
    if (IsWhole(plan)) Fail(ErrorCode::kRuntime, "no such layer");
  };
  Tokens tokens(bench);
  for (int i = 0; i < 2; ++i) tokens.Next();
  const ExecutorCounters counters = bench.target->counters();
  Check(counters.layers_refused == Reasons{{Words(Reason::kRefused), 2}}, "each counts");
  Check(counters.layer_tokens == 0 && counters.retries == 0, "no retries");
  Check(bench.lines.size() == 1 && bench.lines[0].find("no such layer") != std::string::npos,
        "one line, got ", bench.lines.size());
}

void LayersThatFailTwiceRunStepByStep() {
  const Bench bench(kWithLayers);
  int64_t tried = 0;
  bench.device->before_plan = [&](const npu::Invocations& plan) {
    if (!IsWhole(plan)) return;
    ++tried;
    throw DeviceError(Fault::kTimeout, "a layer hangs");
  };
  Tokens tokens(bench);
  for (int i = 0; i < 3; ++i) tokens.Next();
  const ExecutorCounters counters = bench.target->counters();
  Check(tried == 2 && bench.device->resets == 2, tried, " attempts");
  Check(counters.layers_refused == Reasons{{Words(LayerReason::kFault), 3}}, "each counts");
  Check(counters.retries == 1 && counters.fallbacks == 0, "the device goes on");
  Check(bench.lines.size() == 1 && bench.lines[0].find("a layer hangs") != std::string::npos,
        "one line, got ", bench.lines.size());
}

void ADeviceThatIsGoneIsTriedThreeTimes() {
  const Bench bench(kWithLayers);
  int64_t tried = 0;
  bench.device->before_plan = [&](const npu::Invocations&) {
    ++tried;
    throw DeviceError(Fault::kDeviceLost, "it is gone");
  };
  const WholeDecoder::Model model(kWhole, 2);
  WholeDecoder device(model, true);
  bench.Run(device.Token(5));
  device.Advance();
  bench.Run(device.Token(6));
  const ExecutorCounters counters = bench.target->counters();
  Check(tried == 3 && counters.retries == 1 && counters.fallbacks == 1, tried, " attempts");
  Check(!bench.target->device_in_use() && bench.lines.size() == 1, "it is given up");
}

void LayersNeedTheOverlayDecode() {
  const Bench bench({"fused_layer", "fused_dqp", "flow_kv"});
  const WholeDecoder::Model model(kWhole, 2);
  WholeDecoder device(model, true);
  bench.Run(device.Token(5));
  Check(bench.target->counters().layers_refused == Reasons{{"no overlay decode", 1}},
        "the reason is counted");
}

const Cases kLayersCases({
    {"plans_that_do_not_run_whole", PlansThatDoNotRunWhole},
    {"refused_layers_run_step_by_step", RefusedLayersRunStepByStep},
    {"layers_that_fail_twice_run_step_by_step", LayersThatFailTwiceRunStepByStep},
    {"a_device_that_is_gone_is_tried_three_times", ADeviceThatIsGoneIsTriedThreeTimes},
    {"layers_need_the_overlay_decode", LayersNeedTheOverlayDecode},
});

}  // namespace
}  // namespace ort_aie::npu_target
