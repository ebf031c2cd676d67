// Which steps the host computes, and why.
#include <functional>
#include <map>

#include "decoder.h"
#include "projection.h"

namespace ort_aie::npu_target {
namespace {

void HostStepsHaveReasons() {
  Bench bench;
  std::map<std::string, int64_t> expected;
  const auto project = [&](const ProjectionCase& c, const char* reason,
                           const std::function<void(MatMulStep&)>& change = {}) {
    Projection projection(c);
    MatMulStep step = projection.Step();
    if (change) change(step);
    const Values before = projection.y;
    bench.Run({step});
    const Values got = projection.y;
    HostTarget().Execute({step}, kThreads);
    Check(got.bytes == projection.y.bytes && got.bytes != before.bytes, reason);
    ++expected[reason];
  };
  project({}, "int8 numerics", [](MatMulStep& step) { step.numerics = Numerics::kInt8; });
  for (const int64_t rows : {1, 40}) {
    project({.rows = rows, .form = {WeightKind::kQ8NX}}, "no kernel for weights of 8 bits");
    project({.rows = rows, .form = q4nx::FormOf(FileType::kQ4_K)},
            "no kernel for weights as in a GGUF file");
  }
  project({.k = 65537, .n = 128}, "a projection from more than 65536 in-features");
  project({.rows = 2, .k = 65537, .n = 128, .form = kBf16},
          "a projection from more than 65536 in-features");
  project({.form = kBf16}, "a single row of an unquantised projection");

  Projection table({});
  const int64_t index = 3;
  Values row(DataType::kFloat32, 512);
  bench.Run({GatherStep{table.weights.data(), 1, 512, 256, &index, DataType::kInt64, row.data(),
                        DataType::kFloat32}});
  ++expected["rows of an embedding"];

  const Values wide(DataType::kFloat32, Exact(2 * 16640));
  Values y(DataType::kFloat32, 2 * 16640);
  const auto norm = [&](int64_t rows, int64_t k, const char* reason) {
    bench.Run({NormStep{rows, k, wide.data(), nullptr, wide.data(), y.data(), nullptr,
                        DataType::kFloat32, 1e-6f}});
    ++expected[reason];
  };
  norm(1, 256, "a vector operator on what the host has");
  norm(2, 300, "a vector operator on several rows");
  norm(1, 16640, "a vector operator on more than 16384 elements");
  for (const Function function : {Function::kSigmoid, Function::kGelu}) {
    bench.Run({ElementwiseStep{function, 1, 256, wide.data(), nullptr,
                               ElementwiseStep::Operand::kTensor, y.data(), DataType::kFloat32}});
    ++expected["an activation that the overlay does not have"];
  }

  const Layer layer;
  const auto attend = [&](const char* reason, const std::function<void(AttentionStep&)>& change) {
    Generator generator(layer, 16);
    generator.past = {0};
    AttentionStep step = generator.Step(1, {});
    const Values q(DataType::kFloat32, Exact(256)), kv(DataType::kFloat32, Exact(128));
    Values output(DataType::kFloat32, 256);
    step.query = q.data();
    step.key = step.value = kv.data();
    step.past_key = step.present_key = generator.keys.data();
    step.past_value = step.present_value = generator.values.data();
    step.output = output.data();
    change(step);
    bench.Run({step});
    ++expected[reason];
  };
  const Values bias(DataType::kFloat32, Exact(64));
  attend("attention_bias", [&](AttentionStep& step) {
    step.bias = bias.data();
    step.bias_row_stride = 16;
  });
  attend("head_sink", [&](AttentionStep& step) { step.head_sink = bias.data(); });
  attend("smooth_softmax", [](AttentionStep& step) { step.smooth_softmax = true; });
  const char* const hidden = "an attention mask that hides more than the first keys";
  attend(hidden, [](AttentionStep& step) { step.visible_keys = {{1, 1}}; });
  attend(hidden, [](AttentionStep& step) {  // the last one
    step.past_length = {1};
    step.total_length = {2};
    step.visible_keys = {{0, 1}};
  });
  static const int64_t holes[] = {1};
  attend(hidden, [](AttentionStep& step) {
    step.visible_keys = {{0, 1}};
    step.key_mask = holes;
    step.key_mask_stride = 1;
  });
  expected[hidden] = 3;
  Check(bench.runs() == 0, "nothing was for the device");
  Check(bench.target->counters().host_steps == expected, "other reasons");
  Check(bench.target->device_in_use(), "no fault");

  Bench bare(Designs{});
  Projection token({}), prompt({.rows = 2}), floats({.rows = 3, .form = kBf16});
  bare.Run({token.Step(), prompt.Step(), floats.Step()});
  Check(bare.target->counters().host_steps ==
            std::map<std::string, int64_t>{{"no overlay decode or fused_dqp", 1},
                                           {"no overlay dequant", 1},
                                           {"no overlay gemm", 1}},
        "reasons without overlays");
  Bench npu1(Designs{"fused_dqp"}, {}, "npu1");
  Projection first({.k = 256, .n = 256});
  npu1.Run({first.Step(), NormStep{1, 256, first.y.data(), nullptr, wide.data(), y.data(), nullptr,
                                   DataType::kFloat32, 1e-6f}});
  Check(npu1.target->counters().host_steps ==
            std::map<std::string, int64_t>{{"no overlay decode", 1}},
        "vector operators of NPU1");
}

using Reasons = std::map<std::string, int64_t>;

// What divides a plan on a device with an overlay of each kind: attention has another overlay, and
// its results, which no vector operator turns into a row, go through the host.
void OverlaysDivideAPlan() {
  Bench bench({"fused_dqp", "flow_kv", "dequant", "gemm", "flow_qkv"});
  const WholeDecoder::Model model({.name = "one layer", .packed = true}, 1);
  WholeDecoder decoder(model, true);
  for (int64_t token = 1; token < 4; ++token) {
    bench.Run(decoder.Token(token));
    decoder.Advance();
    Check(bench.device->counters().submissions == 6 * token, "six submissions");
    const Reasons want = {{"a step of another overlay", 2 * token},
                          {"an input that goes to the device from the host", 3 * token}};
    Check(bench.target->counters().host_steps_between == want, "other reasons");
  }
}

// The device executes all of a plan except the refused step, in few submissions.
void ARefusedStepDividesAPlan() {
  for (const int64_t refused : {0, 1, 5, 6, 11}) {
    Bench bench;
    std::vector<Projection> chain;
    for (int64_t i = 0; i < 12; ++i) chain.emplace_back(ProjectionCase{.k = 256, .n = 256});
    Plan plan;
    for (size_t i = 0; i < chain.size(); ++i) {
      plan.steps.push_back(chain[i].Step());
      auto& step = std::get<MatMulStep>(plan.steps.back());
      if (i > 0) step.a = chain[i - 1].y.data();
      // The norm marks the step.
      if (static_cast<int64_t>(i) == refused) step.norm_weight = chain[i].a.data();
    }
    bench.device->before_plan = [](const npu::Invocations& invocations) {
      for (const npu::Invocation& invocation : invocations) {
        if (invocation.sequence == "rms_norm") Fail(ErrorCode::kInvalidArgument, "not today");
      }
    };
    for (int64_t token = 1; token < 3; ++token) {
      bench.Run(plan);
      const ExecutorCounters counters = bench.target->counters();
      const std::string reason = "the sequence of the overlay refuses the shape";
      Check(counters.host_steps == Reasons{{reason, token}}, "one step of the host's");
      Check(counters.device_steps == 11 * token, "the others are the device's");
      const int64_t submissions = bench.device->counters().submissions;
      Check(submissions <= 6 * token, "submissions: ", submissions);
      // Every wait except a call's last one has a reason.
      const auto& between = counters.host_steps_between;
      const int64_t divided = between.contains(reason) ? between.at(reason) : 0;
      Check(between.size() <= 1 && divided == submissions - token, divided, " reasons of ",
            submissions, " submissions");
    }
  }
}

// The target uses those of a token's overlays that exist, and reports the cost of the others when
// it is made.
void WhatIsLostWithoutDecodeIsSaidOnce() {
  const auto said = [](const Designs& designs, const char* device = "npu2") {
    Bench bench(designs, {}, device);
    Check(bench.at_first.size() <= 1, "a line at most");
    return bench.at_first.empty() ? std::string() : bench.at_first[0];
  };
  const auto has = [](const std::string& line, const std::string& text) {
    Check(line.find(text) != std::string::npos, "\"", text, "\" in: ", line);
  };
  Check(said(kAll).empty(), "nothing is lost");
  Check(said({"fused_dqp", "dequant", "gemm"}, "npu1").empty(), "NPU1 has no room for it");
  const std::string both = said({"fused_dqp", "flow_kv", "dequant", "gemm", "flow_qkv"});
  has(both, "NPU Reference: there is no overlay decode");
  has(both, "its projections run on the overlay fused_dqp, its attention on the overlay flow_kv");
  has(both, "ort-aie kernels build decode --device npu2 --out DIR");
  has(said({"flow_kv"}), "its projections run on this CPU, its attention on the overlay flow_kv");
  has(said({"gemm"}), "its projections run on this CPU, its attention on this CPU");
}

void NoticesOfTheDeviceAreReportedOnce() {
  Bench bench;
  bench.device->notices = {"weights are copied"};
  Projection projection({.k = 256});
  for (int i = 0; i < 2; ++i) bench.Run({projection.Step()});
  Check(bench.lines == std::vector<std::string>{"NPU Reference: weights are copied"}, "one line");
}

const Cases kHostStepsCases({
    {"overlays_divide_a_plan", OverlaysDivideAPlan},
    {"a_refused_step_divides_a_plan", ARefusedStepDividesAPlan},
    {"host_steps_have_reasons", HostStepsHaveReasons},
    {"notices_of_the_device_are_reported_once", NoticesOfTheDeviceAreReportedOnce},
    {"what_is_lost_without_decode_is_said_once", WhatIsLostWithoutDecodeIsSaidOnce},
});

}  // namespace
}  // namespace ort_aie::npu_target
