// Layers of experts: the host chooses, and the device computes what is chosen.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench.h"
#include "ops/routing.h"
#include "projection.h"

namespace ort_aie::npu_target {
namespace {

struct Layer {
  int64_t rows = 1, hidden = 512, inter = 256, experts = 6, top_k = 2;
  DataType type = DataType::kFloat32;
  Activation activation = Activation::kSilu;
  bool gated = true, bias = false;
  WeightForm form = {};
};

class Experts {
 public:
  explicit Experts(const Layer& layer)
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
    step.form = step.down_form = c.form;
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
    return step;
  }

  Values OnHost() {
    Values result(c.type, c.rows * c.hidden);
    MoEStep step = Step();
    step.y = result.data();
    HostTarget().Execute({step}, kThreads);
    return result;
  }

  // Bounds on the difference between the device's and the host's y. Both round x and h to bfloat16,
  // h perhaps in different directions. The device rounds each product as well, and a prompt's
  // weights. An activation has a slope of at most 1.2, and is not larger than its argument.
  std::vector<double> Bounds() {
    const MoEStep step = Step();
    std::vector<double> bounds(static_cast<size_t>(c.rows * c.hidden));
    std::vector<int32_t> memory(static_cast<size_t>(RoutingWords(step, c.rows)));
    const std::vector<float> logits = router.floats(), xs = x.floats();
    const Routing routing = RouteRows(step, c.rows, logits.data(), nullptr, memory.data());
    for (const int32_t expert : routing.used) {
      const Matrix in = Of(gate, expert, c.inter, c.hidden),
                   out = Of(down, expert, c.hidden, c.inter);
      const Matrix other = c.gated ? Of(up, expert, c.inter, c.hidden) : Matrix{};
      const auto pairs = routing.first.subspan(static_cast<size_t>(expert), 2);
      for (auto pair = static_cast<size_t>(pairs[0]); pair < static_cast<size_t>(pairs[1]);
           ++pair) {
        const int64_t row = routing.row[pair];
        const std::vector<double> its(xs.begin() + row * c.hidden,
                                      xs.begin() + (row + 1) * c.hidden);
        const Product g = Times(in, its, {}, BiasOf(gate_bias, expert, c.inter));
        Product u = Times(other, its, {}, BiasOf(up_bias, expert, c.inter));
        if (!c.gated)
          u = {std::vector<double>(g.value.size(), 1), std::vector<double>(g.value.size())};
        std::vector<double> h(g.value.size()), dh(g.value.size());
        for (size_t i = 0; i < h.size(); ++i) {
          const double beta = c.activation == Activation::kSwiglu ? 1 : 0;
          h[i] = std::abs(g.value[i]) * (std::abs(u.value[i]) + beta);
          dh[i] = 1.2 * g.error[i] * (std::abs(u.value[i]) + u.error[i] + beta) +
                  std::abs(g.value[i]) * u.error[i];
          dh[i] += 2 * kUnit * (h[i] + dh[i]);
        }
        const Product result = Times(out, h, dh, BiasOf(down_bias, expert, c.hidden));
        for (int64_t i = 0; i < c.hidden; ++i) {
          bounds[static_cast<size_t>(row * c.hidden + i)] +=
              routing.weight[pair] * result.error[static_cast<size_t>(i)];
        }
      }
    }
    for (double& bound : bounds) bound += c.type == DataType::kFloat32 ? 1e-6 : 0;
    if (c.type == DataType::kFloat32) return bounds;
    const std::vector<float> want = OnHost().floats();
    for (size_t i = 0; i < bounds.size(); ++i) bounds[i] += 2 * kUnit * std::abs(want[i]) + 1e-3;
    return bounds;
  }

  const Layer c;
  std::vector<uint8_t> gate, down, up;
  std::vector<float> gate_bias, up_bias, down_bias;
  Values x, router, y;
  std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();

 private:
  struct Matrix {
    int64_t n = 0, k = 0;
    std::vector<float> values = {};
  };
  struct Product {
    std::vector<double> value, error;
  };

  std::vector<uint8_t> NewWeights(int64_t n, int64_t k) const {
    std::vector<uint8_t> all;
    for (int64_t e = 0; e < c.experts; ++e) {
      const std::vector<uint8_t> one = Weights(n, k, c.form);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  Matrix Of(const std::vector<uint8_t>& all, int64_t expert, int64_t n, int64_t k) const {
    Matrix matrix{n, k, std::vector<float>(static_cast<size_t>(n * k))};
    const int64_t bytes = q4nx::BytesOfBlocks(n, k, c.form);
    q4nx::Dequantize(all.data() + expert * bytes, n, k, matrix.values.data(), c.form);
    return matrix;
  }
  static const float* BiasOf(const std::vector<float>& all, int64_t expert, int64_t n) {
    return all.empty() ? nullptr : all.data() + expert * n;
  }

  // A projection of x, of which each element may differ by dx. The value is at least the size of
  // the exact one where x is a size itself.
  static Product Times(const Matrix& matrix, const std::vector<double>& x,
                       const std::vector<double>& dx, const float* bias) {
    Product product{std::vector<double>(static_cast<size_t>(matrix.n)),
                    std::vector<double>(static_cast<size_t>(matrix.n))};
    for (int64_t n = 0; n < matrix.n; ++n) {
      double value = 0, size = 0, error = 0;
      for (int64_t k = 0; k < matrix.k; ++k) {
        const double w = matrix.values[static_cast<size_t>(n * matrix.k + k)];
        const double moved = dx.empty() ? 0 : dx[static_cast<size_t>(k)];
        value += w * x[static_cast<size_t>(k)];
        size += std::abs(w) * (std::abs(x[static_cast<size_t>(k)]) + moved);
        error += std::abs(w) * moved;
      }
      if (!dx.empty()) value = size;
      const double b = bias == nullptr ? 0 : bias[n];
      // A prompt's weights are rounded to bfloat16, and not on the host for a few rows.
      error += (kUnit / 2 + static_cast<double>(matrix.k) * 0x1p-24) * size;
      error += 2 * kUnit * (std::abs(value) + error + std::abs(b));
      product.value[static_cast<size_t>(n)] = value + b;
      product.error[static_cast<size_t>(n)] = error;
    }
    return product;
  }
};

// Bounds of the worst case grow with K. Roundings are independent, and each moves an element by
// 0.42
// * 2^-8 in root mean square (docs/architecture.md): those of a prompt's weights, of g, u, h and y,
// on which an activation's slope acts. Their sum is well below 2^-6 of y; another expert's y is
// not.
void Compare(Experts& layer, const Values& want) {
  Near("y", layer.y, want, layer.Bounds());
  double difference = 0, size = 0;
  const std::vector<float> got = layer.y.floats(), wanted = want.floats();
  for (size_t i = 0; i < got.size(); ++i) {
    difference += std::pow(double{got[i]} - wanted[i], 2);
    size += std::pow(double{wanted[i]}, 2);
  }
  Check(difference < size * 0x1p-12, "y differs by ", std::sqrt(difference / size), " of its size");
}

void ExpertsOfAToken() {
  for (const Layer& c :
       std::vector<Layer>{{},
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
  for (const Layer& c :
       std::vector<Layer>{{.rows = 2},
                          {.rows = 70, .type = DataType::kFloat16},
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
