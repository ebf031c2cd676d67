// Layers of experts: the host chooses, and the device computes what is chosen.
#include <map>

#include "bench.h"
#include "projection.h"

namespace ort_aie::npu_target {
namespace {

struct ExpertsCase {
  int64_t rows = 1, hidden = 512, inter = 256, experts = 6, top_k = 2;
  DataType type = DataType::kFloat32;
  Activation activation = Activation::kSilu;
  bool gated = true, bias = false;
  WeightForm form = {};
  int64_t prompt_chunk = 0;
};

class Experts {
 public:
  explicit Experts(const ExpertsCase& layer)
      : c(layer),
        gate(NewWeights(c.inter, c.hidden)),
        down(NewWeights(c.hidden, c.inter)),
        x(c.type, Exact(c.rows * c.hidden)),
        // No two logits of a row are alike.
        router(c.type, Exact(c.rows * c.experts, 0.0625f, 127)),
        y(c.type, c.rows * c.hidden) {
    if (c.gated) up = NewWeights(c.inter, c.hidden);
    if (!c.bias) return;
    gate_bias = Exact(c.experts * c.inter);
    if (c.gated) up_bias = Exact(c.experts * c.inter);
    down_bias = Exact(c.experts * c.hidden);
  }

  MoEStep Step() {
    const auto or_null = [](const auto& of) { return of.empty() ? nullptr : of.data(); };
    MoEStep step{};
    step.rows = c.rows;
    step.hidden = c.hidden;
    step.inter = c.inter;
    step.experts = c.experts;
    step.top_k = c.top_k;
    step.x = x.data();
    step.router = router.data();
    step.gate = gate.data();
    step.up = or_null(up);
    step.down = down.data();
    step.form = step.up_form = step.down_form = c.form;
    step.gate_bias = or_null(gate_bias);
    step.up_bias = or_null(up_bias);
    step.down_bias = or_null(down_bias);
    step.activation = c.activation;
    if (c.activation == Activation::kSwiglu) {
      step.swiglu = {.alpha = 1.702f, .beta = 1, .limit = 7, .limit_after = false};
    }
    step.y = y.data();
    step.type = c.type;
    step.numerics = Numerics::kBf16;
    step.kept = kept;
    step.prompt_chunk = c.prompt_chunk;
    return step;
  }

  Values OnHost() {
    Values result(c.type, c.rows * c.hidden);
    MoEStep step = Step();
    step.y = result.data();
    HostTarget().Execute({step}, kThreads);
    return result;
  }

  const ExpertsCase c;
  std::vector<uint8_t> gate, down, up;
  std::vector<float> gate_bias, up_bias, down_bias;
  Values x, router, y;
  std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();

 private:
  std::vector<uint8_t> NewWeights(int64_t n, int64_t k) const {
    std::vector<uint8_t> all;
    for (int64_t e = 0; e < c.experts; ++e) {
      const std::vector<uint8_t> one = Weights(n, k, c.form);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
};

// Also of a prompt's weights, of g, u, h and y: another expert's y is not near.
void Compare(Experts& layer, const Values& want) { Near("y", layer.y, want, layer.c.hidden); }

void ExpertsOfAToken() {
  for (const ExpertsCase& c :
       std::vector<ExpertsCase>{{},
                                {.type = DataType::kFloat16, .activation = Activation::kGeluTanh},
                                {.inter = 96, .top_k = 3, .type = DataType::kBfloat16},
                                {.activation = Activation::kSwiglu, .bias = true},
                                {.activation = Activation::kRelu, .gated = false},
                                {.activation = Activation::kNone, .gated = false, .bias = true},
                                {.form = {WeightKind::kQ2NX}},
                                {.form = {WeightKind::kQ4NX, 128, false}}}) {
    Bench bench;
    Experts layer(c);
    const Values want = layer.OnHost();
    const bool there = c.gated && !c.bias && c.activation != Activation::kSwiglu;
    for (int call = 0; call < 2; ++call) {
      layer.y = Values(c.type, c.hidden);
      bench.Run({layer.Step()});
      Compare(layer, want);
    }
    // All experts together, unless the host applies the activation.
    const bool once = there || (!c.gated && c.activation == Activation::kNone);
    Check(bench.device->counters().submissions == (once ? 2 : 4), "got ",
          bench.device->counters().submissions, " submissions");
    bench.OnlyDevice();
  }
}

void ExpertsOfAPrompt() {
  for (const ExpertsCase& c :
       std::vector<ExpertsCase>{{.rows = 2},
                                {.rows = 70, .type = DataType::kFloat16, .prompt_chunk = 32},
                                {.rows = 40, .activation = Activation::kSwiglu, .bias = true}}) {
    Bench bench;
    Experts layer(c);
    const Values want = layer.OnHost();
    bench.Run({layer.Step()});
    Compare(layer, want);
    bench.OnlyDevice();
  }
}

// What the device reads in place is the model's memory, pinned in three ranges for all experts.
void ExpertsArePinnedOnce() {
  for (const bool copied : {false, true}) {
    Bench bench;
    Experts layer({.inter = copied ? 96 : 256});
    for (int call = 0; call < 2; ++call) bench.Run({layer.Step()});
    // Those that are copied, with 128 out-features, are in one buffer for each projection.
    Check(bench.device->counters().buffers == 3, "got ", bench.device->counters().buffers,
          " buffers");
    layer.kept->object = nullptr;
    Check(bench.device->counters().buffers == 0, "they went along");
  }
}

// Experts are in the shipping form on the device, so the projections around them are too: a token's
// overlay stays.
void ExpertsDecideTheFormOfTheirPlan() {
  Designs designs = kAll;
  designs.insert({"decode_128", "dequant_128"});
  Bench bench(designs);
  Experts layer({});
  Projection projection({.form = {WeightKind::kQ4NX, 128, true}});
  Plan plan = {projection.Step(), layer.Step()};
  plan.kept = std::make_shared<KeptState>();
  bench.Run(plan);
  Compare(layer, layer.OnHost());
  const std::map<std::string, int64_t> one = {{"other weights of the plan have another form", 1}};
  Check(bench.target->counters().widened == one, "the projection is widened");
}

void ExpertsOfADeviceThatFails() {
  for (const bool for_good : {false, true}) {
    for (const int64_t faulty : {0, 1}) {
      Bench bench;
      // The host's activation is between two runs.
      Experts layer({.activation = Activation::kSwiglu});
      const Values want = layer.OnHost();
      bench.device->before_run = [&](int64_t run) {
        if (for_good ? run >= faulty : run == faulty) {
          throw DeviceError(Fault::kDeviceLost, "it is gone");
        }
      };
      for (int call = 0; call < 3; ++call) {
        layer.y = Values(layer.c.type, layer.c.hidden);
        bench.Run({layer.Step()});
        Compare(layer, want);
      }
      const ExecutorCounters counters = bench.target->counters();
      Check(counters.retries == 1 && counters.fallbacks == (for_good ? 1 : 0), counters.retries,
            " retries, ", counters.fallbacks, " fallbacks");
      Check(bench.target->device_in_use() != for_good, "the device is given up, or not");
      if (for_good) Check(layer.y.bytes == want.bytes, "a layer on the host is the host's");
    }
  }
}

const Cases kExpertsCases({
    {"experts_of_a_token", ExpertsOfAToken},
    {"experts_of_a_prompt", ExpertsOfAPrompt},
    {"experts_are_pinned_once", ExpertsArePinnedOnce},
    {"experts_decide_the_form_of_their_plan", ExpertsDecideTheFormOfTheirPlan},
    {"experts_of_a_device_that_fails", ExpertsOfADeviceThatFails},
});

}  // namespace
}  // namespace ort_aie::npu_target
