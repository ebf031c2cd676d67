// Plans of several steps.
#include "generator.h"
#include "projection.h"

namespace ort_aie::xrt {
namespace {

// q, k, v; attention; o; gate and up on the sum; down: seven matrices and a cache, at most four of
// which fit beside the activations of a run.
void ALayerInThreeRuns() {
  const Layer layer;
  Projection q({.k = 256, .norm = true}), k({.k = 256, .n = 128, .norm = true}),
      v({.k = 256, .n = 128, .norm = true}), o({.k = 256}),
      mlp({.k = 256, .n = 512, .norm = true, .skip = true, .gated = true}), down({.k = 512});
  const auto plan_of = [&](std::vector<Values>& out, Values& keys, Values& values) {
    out.clear();
    for (const int64_t count : {256, 128, 128, 256, 256, 512, 256, 256}) {
      out.emplace_back(DataType::kFloat32, count);
    }
    keys = values = Values(DataType::kBfloat16, std::vector<float>(2 * 16 * 64));
    std::vector<MatMulStep> steps;
    for (Projection* projection : {&q, &k, &v, &o, &mlp, &down}) {
      steps.push_back(projection->Step());
    }
    for (int i = 0; i < 3; ++i) {
      steps[static_cast<size_t>(i)].a = q.a.data();
      steps[static_cast<size_t>(i)].y = out[static_cast<size_t>(i)].data();
    }
    Generator generator(layer, 16);
    generator.past = {0};
    AttentionStep attention = generator.Step(1, {});
    attention.query = out[0].data();
    attention.key = out[1].data();
    attention.value = out[2].data();
    attention.past_key = attention.present_key = keys.data();
    attention.past_value = attention.present_value = values.data();
    attention.output = out[3].data();
    steps[3].a = out[3].data();
    steps[3].y = out[4].data();
    steps[4].a = out[4].data();
    steps[4].skip = q.a.data();
    steps[4].sum = out[7].data();
    steps[4].y = out[5].data();
    steps[5].a = out[5].data();
    steps[5].y = out[6].data();
    return Plan{steps[0], steps[1], steps[2], attention, steps[3], steps[4], steps[5]};
  };
  Bench bench;
  std::vector<Values> want, got;
  Values keys, values, got_keys, got_values;
  HostTarget().Execute(plan_of(want, keys, values), kThreads);
  bench.Run(plan_of(got, got_keys, got_values));
  Check(bench.runs() == 3, "three runs, got ", bench.runs());
  const std::vector<std::string> expected = {
      "rms_norm", "matvec",   "rms_norm", "matvec", "rms_norm", "matvec", "attention",
      "matvec",   "rms_norm", "matvec",   "matvec", "glu",      "matvec"};
  Check(bench.device->sequences == expected, "other sequences");
  // Each tensor on the way is rounded on the device and not on the host. What that moves in the
  // next is a sum of k products of random signs beside the k products that make it, so relative
  // errors stay what they were: a unit of the largest value for each of the eight roundings to the
  // end.
  for (size_t i = 0; i < want.size(); ++i) {
    double largest = 0;
    for (const float x : want[i].floats()) largest = std::max(largest, double{std::abs(x)});
    Near("a tensor of the layer", got[i], want[i], 8 * kUnit * largest);
  }
  bench.OnlyDevice();
}

void ChainedStepsShareARun() {
  // The second reads what the first wrote, the third the sum of the second.
  Projection first({.k = 256}), second({.k = 256, .norm = true, .skip = true}), third({.k = 256});
  Bench bench;
  MatMulStep a = first.Step(), b = second.Step(), c = third.Step();
  b.a = first.y.data();
  c.a = second.sum.data();
  bench.Run({a, b, c});
  Check(bench.runs() == 1, "one run, got ", bench.runs());
  const Values y1 = first.y, y2 = second.y, sum = second.sum, y3 = third.y;
  for (const MatMulStep& step : {a, b, c}) bench.Run({step});
  Near("y1", y1, first.y, 0);
  Near("sum", sum, second.sum, 0);
  // The device's own sum is rounded before the norm, the host's after it: by a unit of a sum below
  // 8 (y1 is below 4), of which the norm makes less than a unit of 8, and then x once more. So y
  // moves by at most 3 units of 8 times a row's sum |w|, on the average 0.047 * 256.
  Near("y2", y2, second.y, 3 * kUnit * 8 * 0.047 * 256);
  Near("y3", y3, third.y, 3 * kUnit * 8 * 0.047 * 256);
  // Half of a tensor is not a tensor that is there in one piece: it takes the way over the host.
  Projection wide({.k = 256, .n = 512}), half({.k = 256});
  MatMulStep d = wide.Step(), e = half.Step();
  e.a = static_cast<const uint8_t*>(wide.y.data()) + 256 * 4;
  const int64_t before = bench.runs();
  bench.Run({d, e});
  Check(bench.runs() == before + 2, "two runs, got ", bench.runs() - before);
  const Values apart = half.y;
  bench.Run({e});
  Near("y of a half", apart, half.y, 0);
  bench.OnlyDevice();
}

const Cases registered({
    {"a_layer_in_three_runs", ALayerInThreeRuns},
    {"chained_steps_share_a_run", ChainedStepsShareARun},
});

}  // namespace
}  // namespace ort_aie::xrt
