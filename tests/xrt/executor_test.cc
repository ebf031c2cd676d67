// The executor on a device that executes references: beside the host target on its portable kernels
// (ORT_AIE_ISA=portable), which accumulate in float32 and round activations of projections only.
//
//   executor_test MANIFESTS CASE
//
// MANIFESTS/<device>/<design>.json. Exit status 1 and a line that says why when a case fails.
#include "targets/xrt/executor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ops/error.h"
#include "q4nx/bfloat16.h"
#include "q4nx/pack.h"
#include "reference_device.h"
#include "targets/host/host_target.h"
#include "targets/host/kernels.h"

namespace ort_aie::xrt {
namespace {

using Designs = std::set<std::string>;

std::filesystem::path manifests;
const Designs kAll = {"decode", "dequant", "gemm", "flow_qkv"};
const InlineThreadPool kThreads;
constexpr double kUnit = 0x1p-8;  // largest relative error of a rounding to bfloat16

template <typename... Parts>
void Check(bool condition, const Parts&... parts) {
  if (!condition) throw std::logic_error(Concat(parts...));
}

// --- tensors
// ----------------------------------------------------------------------------------------

struct Values {
  DataType type = DataType::kFloat32;
  std::vector<uint8_t> bytes;

  Values() = default;
  Values(DataType t, const std::vector<float>& x) : type(t), bytes(x.size() * SizeOf(t)) {
    host::FromFloat(host::SelectedKernels(), t, x.data(), static_cast<int64_t>(x.size()), data());
  }
  // Of a pattern that no result has.
  Values(DataType t, int64_t count)
      : type(t), bytes(static_cast<size_t>(count) * SizeOf(t), 0xab) {}
  void* data() { return bytes.data(); }
  const void* data() const { return bytes.data(); }
  std::vector<float> floats() const {
    std::vector<float> x(bytes.size() / SizeOf(type));
    host::ToFloat(host::SelectedKernels(), type, data(), static_cast<int64_t>(x.size()), x.data());
    return x;
  }
};

std::mt19937& Random() {
  static std::mt19937 generator(7);
  return generator;
}

// Exact in bfloat16, so that a type or a rounding to bfloat16 changes nothing.
std::vector<float> Exact(int64_t count, float step = 0.125f, int most = 15) {
  std::uniform_int_distribution<int> pick(-most, most);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = step * static_cast<float>(pick(Random()));
  return x;
}

std::vector<uint8_t> Weights(int64_t n, int64_t k) {
  std::uniform_int_distribution<int> code(0, 15);
  std::uniform_real_distribution<float> scale(0.005f, 0.02f);
  const int64_t groups = q4nx::CeilDiv(k, q4nx::kGroup);
  std::vector<uint8_t> codes(static_cast<size_t>(n * k));
  std::vector<uint16_t> scales(static_cast<size_t>(n * groups)), mins(scales.size());
  for (uint8_t& c : codes) c = static_cast<uint8_t>(code(Random()));
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = FloatToBfloat16(scale(Random()));
    mins[i] = FloatToBfloat16(-7.5f * Bfloat16ToFloat(scales[i]));
  }
  std::vector<uint8_t> blocks(
      static_cast<size_t>(q4nx::RowBlocks(n) * q4nx::ColBlocks(k) * q4nx::kBlockBytes));
  q4nx::Pack(codes.data(), scales.data(), mins.data(), n, k, blocks.data());
  return blocks;
}

void Near(const char* what, const Values& got, const Values& want,
          const std::vector<double>& bounds) {
  const std::vector<float> x = got.floats(), y = want.floats();
  for (size_t i = 0; i < y.size(); ++i) {
    Check(std::abs(x[i] - y[i]) <= bounds[i], what, "[", i, "] is ", x[i], ", expected ", y[i],
          " within ", bounds[i]);
  }
}

void Near(const char* what, const Values& got, const Values& want, double bound) {
  Near(what, got, want, std::vector<double>(want.bytes.size(), bound));
}

// --- a target under test
// ----------------------------------------------------------------------------

struct Bench {
  explicit Bench(const Designs& designs = kAll, ExecutorOptions options = {},
                 const char* device_name = "npu2")
      : device(std::make_shared<ReferenceDevice>(manifests / device_name, designs)) {
    options.report = [this](const std::string& line) { lines.push_back(line); };
    target = MakeXrtTarget(device, options);
  }
  void Run(const Plan& plan) const { target->Execute(plan, kThreads); }
  int64_t runs() const { return device->counters().runs; }
  void OnlyDevice() const {
    for (const auto& [reason, count] : target->counters().host_steps) {
      throw std::logic_error(Concat(count, " steps on the host: ", reason));
    }
    Check(lines.empty(), "reported: ", lines.empty() ? "" : lines[0]);
  }

  std::vector<std::string> lines;
  std::shared_ptr<ReferenceDevice> device;
  std::unique_ptr<XrtTarget> target;
};

// --- projections
// ------------------------------------------------------------------------------------

struct ProjectionCase {
  int64_t rows = 1, k = 512, n = 256;
  DataType type = DataType::kFloat32;
  bool bias = false, norm = false, skip = false, gated = false, gelu = false;
};

class Projection {
 public:
  explicit Projection(const ProjectionCase& c)
      : c(c), weights(Weights(c.n, c.k)), a(c.type, Exact(c.rows * c.k)), y(c.type, c.rows * c.n) {
    if (c.gated) up = Weights(c.n, c.k);
    if (c.bias) bias = Values(c.type, Exact(c.n));
    if (c.norm) norm = Values(c.type, Exact(c.k));
    if (c.skip) {
      skip = Values(c.type, Exact(c.rows * c.k));
      sum = Values(c.type, c.rows * c.k);
    }
  }

  MatMulStep Step() {
    MatMulStep step{};
    step.weights = weights.data();
    step.rows = c.rows;
    step.k = c.k;
    step.n = c.n;
    step.a = a.data();
    step.y = y.data();
    step.type = c.type;
    step.numerics = Numerics::kBf16;
    if (c.bias) step.bias = bias.data();
    if (c.norm) step.norm_weight = norm.data();
    if (c.skip) {
      step.skip = skip.data();
      step.sum = sum.data();
    }
    step.norm_epsilon = 1e-5f;
    if (c.gated) step.up_weights = up.data();
    if (c.gelu) step.activation = Activation::kGeluTanh;
    step.kept = kept;
    return step;
  }

  // What the host target makes of the same step.
  struct Outputs {
    Values y, sum;
  };
  Outputs OnHost() {
    Outputs outputs{Values(c.type, c.rows * c.n), Values(c.type, c.skip ? c.rows * c.k : 0)};
    MatMulStep step = Step();
    step.y = outputs.y.data();
    step.sum = outputs.sum.data();
    HostTarget().Execute({step}, kThreads);
    return outputs;
  }

  // Activations are exact in bfloat16. So without a norm, what differs is that the device rounds
  // its products, and the order of sums in float32; with one, both round x, which may fall to
  // different sides: two units of each x. Behind a gate, act(g) * u has a slope of at most 1.2 |u|
  // and |g|.
  std::vector<double> Bounds() const {
    std::vector<std::vector<float>> matrices;
    for (const auto* blocks : {&weights, &up}) {
      if (blocks->empty()) continue;
      matrices.emplace_back(static_cast<size_t>(c.n * c.k));
      q4nx::Dequantize(blocks->data(), c.n, c.k, matrices.back().data());
    }
    std::vector<float> x = a.floats();
    if (c.skip) {
      const std::vector<float> more = skip.floats();
      for (size_t i = 0; i < x.size(); ++i) x[i] += more[i];
    }
    if (c.norm) {
      const std::vector<float> weight = norm.floats();
      for (int64_t r = 0; r < c.rows; ++r) {
        host::SelectedKernels().rms_norm(weight.data(), c.k, 1e-5f, x.data() + r * c.k);
      }
    }
    const double moved = (c.norm ? 2 * kUnit : 0) + static_cast<double>(c.k) * 0x1p-24;
    std::vector<double> bounds;
    for (int64_t i = 0; i < c.rows * c.n; ++i) {
      double product[2] = {}, error[2] = {};
      for (size_t m = 0; m < matrices.size(); ++m) {
        const float* w = matrices[m].data() + i % c.n * c.k;
        double size = 0;
        for (int64_t j = 0; j < c.k; ++j) {
          const double term = double{w[j]} * double{x[static_cast<size_t>(i / c.n * c.k + j)]};
          product[m] += term;
          size += std::abs(term);
        }
        // A prompt's weights are rounded as well, by both, from sums that may differ in a bit.
        error[m] = (moved + (c.rows > 1 ? 0x1p-20 : 0)) * size;
        error[m] += kUnit * (std::abs(product[m]) + error[m]);
      }
      const double bias_size = c.bias ? 2 : 0;
      bounds.push_back(c.gated ? 1.2 * error[0] * (std::abs(product[1]) + error[1]) +
                                     std::abs(product[0]) * error[1] +
                                     kUnit * std::abs(product[0] * product[1])
                               : error[0] + kUnit * bias_size);
      if (c.type == DataType::kBfloat16) {  // the host's result is rounded, too
        bounds.back() +=
            kUnit * (std::abs(c.gated ? product[0] * product[1] : product[0]) + bias_size);
      }
      bounds.back() += c.type == DataType::kFloat16 ? 0x1p-10 * std::abs(product[0]) + 1e-3 : 1e-6;
    }
    return bounds;
  }

  void Compare(const Outputs& want) {
    Near("y", y, want.y, Bounds());
    Check(sum.bytes == want.sum.bytes, "the sum is not the host's");
  }

  const ProjectionCase c;
  std::vector<uint8_t> weights, up;
  Values a, bias, norm, skip, sum, y;
  std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();
};

void ProjectionsOfAToken() {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16}) {
    for (const ProjectionCase& c :
         std::vector<ProjectionCase>{{.type = type},
                                     {.k = 300, .n = 200, .type = type, .bias = true},
                                     {.n = 97, .type = type},
                                     {.n = 1056, .type = type, .bias = true},
                                     {.k = 640, .type = type, .norm = true},
                                     {.k = 300, .type = type, .norm = true, .skip = true},
                                     {.type = type, .norm = true, .skip = true, .gated = true},
                                     {.n = 300, .type = type, .gated = true, .gelu = true},
                                     {.n = 128, .type = type, .norm = true, .gated = true}}) {
      for (const Designs& designs : {kAll, Designs{"fused_dqp"}}) {
        Bench bench(designs, {}, designs == kAll ? "npu2" : "npu1");
        Projection projection(c);
        const auto want = projection.OnHost();
        for (int call = 0; call < 2; ++call) {
          projection.y = Values(type, c.n);
          bench.Run({projection.Step()});
          projection.Compare(want);
        }
        Check(bench.runs() == 2, "one run a call, got ", bench.runs(), " for two");
        bench.OnlyDevice();
      }
    }
  }
}

void ProjectionsOfAPrompt() {
  for (const int64_t rows : {2, 63, 64, 65, 130}) {
    for (const ProjectionCase& c : std::vector<ProjectionCase>{
             {.rows = rows, .k = 300, .n = 200, .type = DataType::kFloat16, .bias = true},
             {.rows = rows, .norm = true, .skip = true},
             {.rows = rows, .type = DataType::kBfloat16, .norm = true, .gated = true},
             {.rows = rows, .n = 288, .gated = true, .gelu = true}}) {
      Bench bench;
      Projection projection(c);
      const auto want = projection.OnHost();
      bench.Run({projection.Step()});
      projection.Compare(want);
      Check(bench.runs() == 2, "dequantisation and GEMM are a run each, got ", bench.runs());
      bench.OnlyDevice();
    }
  }
}

// Bands of out-features and runs of rows, at their edges.
void LargePrompts() {
  for (const int64_t n : {256, 288, 512, 544, 800}) {
    for (const int64_t rows : {511, 512, 513, 1030}) {
      ExecutorOptions options;
      options.weight_bytes = 256 * 256 * 2;  // of 256 out-features
      options.row_bytes = 1;
      Bench bench(kAll, options);
      Projection projection({.rows = rows, .k = 256, .n = n, .bias = n == 288, .gated = n == 544});
      const auto want = projection.OnHost();
      bench.Run({projection.Step()});
      projection.Compare(want);
      const int64_t bands = q4nx::CeilDiv(n, 256), runs = q4nx::CeilDiv(rows, 512);
      Check(bench.runs() == bands * (1 + runs), "expected ", bands, " bands of ", runs,
            " runs, got ", bench.runs(), " runs");
      bench.OnlyDevice();
    }
  }
}

// --- attention
// --------------------------------------------------------------------------------------

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

void TokensOfAllKinds() {
  for (const Layer& layer :
       std::vector<Layer>{{},
                          {.type = DataType::kFloat16, .cache_type = DataType::kFloat16},
                          {.type = DataType::kBfloat16},
                          {.cache_type = DataType::kFloat32},
                          {.dim = 80},
                          {.heads = 2, .kv_heads = 1, .dim = 256},
                          {.heads = 8, .kv_heads = 8, .dim = 32},
                          {.window = 5},
                          {.softcap = 20},
                          {.causal = false},
                          {.batch = 3},
                          {.rotary = true}}) {
    for (const Designs& designs : {kAll, Designs{"flow_kv", "flow_qkv"}}) {
      for (const int64_t capacity : {0, 100}) {
        Bench bench(designs);
        Generator generator(layer, capacity);
        generator.Append(*bench.target, 1);
        generator.Append(*bench.target, 6);
        for (int i = 0; i < 12; ++i) generator.Append(*bench.target, 1);
        Check(bench.runs() == 13 + layer.batch, "a run a token, and a prompt's, got ",
              bench.runs());
        bench.OnlyDevice();
        const ExecutorCounters counters = bench.target->counters();
        const int64_t heads = 2 * layer.batch * layer.kv_heads;
        Check(counters.cache_rows_sent == 19 * heads, "every row is sent once, got ",
              counters.cache_rows_sent, " of ", 19 * heads);
      }
    }
  }
}

void BatchRowsOfDifferentLengths() {
  const Layer layer{.batch = 3};
  Bench bench;
  Generator generator(layer, 64);
  generator.Append(*bench.target, 9, {9, 1, 5});  // the others are padding
  for (int i = 0; i < 5; ++i) generator.Append(*bench.target, 1);
  generator.Append(*bench.target, 4);
  bench.OnlyDevice();
}

// Chunks of 64 queries, which see those before as past.
void PromptsOfAnyLength() {
  for (const Layer& layer : std::vector<Layer>{{},
                                               {.dim = 128},
                                               {.window = 70},
                                               {.causal = false},
                                               {.heads = 6, .kv_heads = 1, .dim = 40}}) {
    for (const int64_t tokens : {2, 7, 8, 9, 63, 64, 65, 128, 129}) {
      if (layer.dim != 64 && tokens > 65) continue;  // the edges are those of the chunks
      ExecutorOptions options;
      options.query_bytes = 1;
      Bench bench(kAll, options);
      Generator generator(layer, tokens % 2 == 0 ? 300 : 0);
      generator.Append(*bench.target, tokens);
      Check(bench.runs() == q4nx::CeilDiv(tokens, 64), "chunks of 64, got ", bench.runs(), " for ",
            tokens);
      generator.Append(*bench.target, 1);
      generator.Append(*bench.target, tokens);  // after a past
      generator.Append(*bench.target, 1);
      bench.OnlyDevice();
    }
  }
}

// The cache grows from 256 rows on the device; the model's limit is the present's.
void ContextUpToTheLimit() {
  const Layer layer{.heads = 1, .kv_heads = 1};
  for (const int64_t capacity : {0, 257, 264}) {
    Bench bench;
    Generator generator(layer, capacity);
    generator.Append(*bench.target, 254);
    for (int i = 0; i < 3; ++i) generator.Append(*bench.target, 1);  // 255, 256, 257
    const int64_t sent = bench.target->counters().cache_rows_sent;
    Check(sent <= 2 * (257 + 257), "a grown cache is sent once more, got ", sent, " rows");
    bench.OnlyDevice();
  }
}

// --- copies of the cache
// ------------------------------------------------------------------------------

int64_t Sent(const Bench& bench, const std::function<void()>& what) {
  const int64_t before = bench.target->counters().cache_rows_sent;
  what();
  return bench.target->counters().cache_rows_sent - before;
}

constexpr int64_t kHeads = 4;  // keys and values of two heads

void GeneratorsTakeTurns() {
  const Layer layer;
  for (const int64_t capacity : {0, 64}) {
    Bench bench;
    std::vector<Generator> generators;
    for (size_t i = 0; i < 4; ++i) generators.emplace_back(layer, capacity);
    for (Generator& generator : generators) generator.Append(*bench.target, 10);
    for (int round = 0; round < 4; ++round) {
      for (Generator& generator : generators) {
        const int64_t sent = Sent(bench, [&] { generator.Append(*bench.target, 1); });
        Check(sent == kHeads, "each finds its copy; got ", sent, " rows sent");
      }
    }
    // A fifth takes the copy of the one who waited longest, who then has to send everything.
    Generator fifth(layer, capacity);
    fifth.Append(*bench.target, 10);
    const int64_t sent = Sent(bench, [&] { generators[0].Append(*bench.target, 1); });
    Check(sent == 15 * kHeads, "got ", sent, " rows sent");
    bench.OnlyDevice();
  }
}

void TurnsOfAConversation() {
  const Layer layer;
  Bench bench;
  Generator generator(layer, 128);
  generator.Append(*bench.target, 20);
  for (int turn = 0; turn < 3; ++turn) {
    for (int i = 0; i < 5; ++i) generator.Append(*bench.target, 1);
    const int64_t sent = Sent(bench, [&] { generator.Append(*bench.target, 11); });
    Check(sent == 11 * kHeads, "a further prompt sends its own rows, got ", sent);
  }
  const ExecutorCounters counters = bench.target->counters();
  Check(counters.cache_bytes_compared > 0 && counters.compare_seconds > 0, "comparing is counted");
  bench.OnlyDevice();
}

void RewindThenOtherTokens() {
  const Layer layer;
  for (const int64_t back : {1, 8, 13}) {
    Bench bench;
    Generator generator(layer, 64);
    generator.Append(*bench.target, 20);
    generator.Append(*bench.target, 1);
    generator.past = {21 - back};
    for (const int64_t tokens : {1, 3, 1}) {
      const int64_t sent = Sent(bench, [&] { generator.Append(*bench.target, tokens); });
      Check(sent == tokens * kHeads, "the rest of the past is kept; got ", sent, " rows sent");
    }
    generator.past = {0};  // and from the start: in the copy that this memory had
    const int64_t buffers = bench.device->counters().buffers;
    generator.Append(*bench.target, 5);
    Check(bench.device->counters().buffers == buffers, "a copy of overwritten memory was kept");
    bench.OnlyDevice();
  }
}

void AnOlderRowChanged() {
  const Layer layer;
  for (const bool values : {false, true}) {
    for (const size_t row : {size_t{0}, size_t{7}, size_t{19}}) {
      Bench bench;
      Generator generator(layer, 64);
      generator.Append(*bench.target, 20);
      generator.Append(*bench.target, 1);
      Values& cache = values ? generator.values : generator.keys;
      cache.bytes[(64 + row) * 64 * 2 + 9] ^= 0x80;  // the sign of an element of the second head
      const int64_t sent = Sent(bench, [&] { generator.Append(*bench.target, 1); });
      Check(sent == 22 * kHeads, "all rows are sent again, got ", sent);
      bench.OnlyDevice();
    }
  }
}

// --- whole plans
// ----------------------------------------------------------------------------------------

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

// --- what the host has to do
// ------------------------------------------------------------------------------

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
  project({.n = 96}, "a projection to fewer than 128 out-features");
  project({.rows = 3, .n = 32}, "a projection to fewer than 128 out-features");
  project({.k = 16640, .n = 128}, "a token's projection from more than 16384 in-features");

  Projection table({});
  const int64_t index = 3;
  Values row(DataType::kFloat32, 512);
  bench.Run({GatherStep{table.weights.data(), 1, 512, 256, &index, DataType::kInt64, row.data(),
                        DataType::kFloat32}});
  ++expected["rows of an embedding"];

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
  attend("an attention mask with hidden keys",
         [](AttentionStep& step) { step.visible_keys = {{1, 1}}; });
  attend("a cache that keeps a window only", [](AttentionStep& step) {
    step.windowed_cache = true;
    step.window = 8;
  });
  Check(bench.runs() == 0, "nothing was for the device");
  Check(bench.target->counters().host_steps == expected, "other reasons");
  Check(bench.target->device_in_use(), "no fault");

  Bench bare(Designs{});
  Projection token({}), prompt({.rows = 2});
  bare.Run({token.Step(), prompt.Step()});
  Check(bare.target->counters().host_steps ==
            std::map<std::string, int64_t>{{"no overlay decode or fused_dqp", 1},
                                           {"no overlay dequant", 1}},
        "reasons without overlays");
}

void RefusedShapes() {
  Bench bench;
  Projection fine({.k = 256}), refused({.k = 256});
  const auto want = refused.OnHost();
  int64_t runs = 0;
  bench.device->before_run = [&](int64_t) {
    if (++runs != 2) Fail(ErrorCode::kInvalidArgument, "K is odd today");
  };
  bench.Run({fine.Step(), refused.Step()});  // both in one run, each alone: the first passes then
  Near("y", refused.y, want.y, 0);
  Check(
      bench.target->counters().host_steps.at("the sequence of the overlay refuses the shape") == 1,
      "one step");
  Check(bench.lines.size() == 1 && bench.target->device_in_use(), "one line, and no fault");
}

// --- faults
// -------------------------------------------------------------------------------------------------

// The steps of each kind; `run` executes them and checks the results.
struct Work {
  const char* name;
  std::function<void(const Bench&)> run;
};

std::vector<Work> AllWork() {
  const auto project = [](const ProjectionCase& c) {
    return [c](const Bench& bench) {
      Projection projection(c);
      const auto want = projection.OnHost();
      const Values a = projection.a;
      bench.Run({projection.Step()});
      projection.Compare(want);
      Check(a.bytes == projection.a.bytes, "an input changed");
    };
  };
  const auto attend = [](int64_t tokens) {
    return [tokens](const Bench& bench) {
      const Layer layer;
      Generator generator(layer, 64);
      generator.Append(*bench.target, tokens);
      for (int i = 0; i < 3; ++i) generator.Append(*bench.target, 1);
    };
  };
  return {{"token's projection", project({.norm = true, .skip = true, .gated = true})},
          {"prompt's projection", project({.rows = 3, .norm = true, .skip = true})},
          {"attention of a token", attend(1)},
          {"attention of a prompt", attend(9)}};
}

void AFaultIsCuredByAFreshContext() {
  for (const Work& work : AllWork()) {
    for (const int64_t faulty : {0, 1, 2}) {
      Bench bench;
      bench.device->before_run = [&](int64_t run) {
        if (run == faulty) throw DeviceError(Fault::kTimeout, "a run took more than 2.5 s");
      };
      for (int i = 0; i < 3; ++i) work.run(bench);
      const ExecutorCounters counters = bench.target->counters();
      Check(counters.retries == 1 && counters.fallbacks == 0 && counters.host_steps.empty(),
            work.name, ": ", counters.retries, " retries, ", counters.fallbacks, " fallbacks");
      Check(bench.device->resets == 1 && bench.target->device_in_use(), "one fresh context");
      Check(bench.lines.size() == 1 && bench.lines[0].find("2.5 s") != std::string::npos, work.name,
            ": one line that says what happened, got ", bench.lines.size());
      Check(bench.device->counters().buffers <= 2, work.name,
            ": buffers of closed ops: ", bench.device->counters().buffers);
    }
  }
}

void ALostDeviceIsGivenUp() {
  for (const Work& work : AllWork()) {
    for (const int64_t faulty : {0, 1, 2}) {
      Bench bench;
      bench.device->before_run = [&](int64_t run) {
        if (run >= faulty) throw DeviceError(Fault::kDeviceLost, "it is gone");
      };
      for (int i = 0; i < 3; ++i) work.run(bench);
      const ExecutorCounters counters = bench.target->counters();
      Check(counters.retries == 1 && counters.fallbacks == 1, work.name, ": ", counters.retries,
            " retries, ", counters.fallbacks, " fallbacks");
      Check(counters.host_steps.size() == 1 && !bench.target->device_in_use(), "the host goes on");
      Check(bench.lines.size() == 1 && bench.lines[0].find("it is gone") != std::string::npos,
            work.name, ": one line, got ", bench.lines.size());
      const int64_t runs = bench.runs();
      work.run(bench);
      Check(bench.runs() == runs, "no more runs");
    }
  }
  // In mid-session never with int8.
  Bench bench;
  bench.device->before_run = [](int64_t) { throw DeviceError(Fault::kRunError, "stopped"); };
  Projection fails({}), projection({});
  bench.Run({fails.Step()});
  const auto want = projection.OnHost();
  MatMulStep step = projection.Step();
  step.numerics = Numerics::kInt8;
  bench.Run({step});
  Check(projection.y.bytes == want.y.bytes, "bf16 numerics after a fault");
}

void RaisingLeavesOutputsAlone() {
  ExecutorOptions options;
  options.raise_on_error = true;
  for (const int64_t rows : {1, 3}) {
    Bench bench(kAll, options);
    bool fails = true;
    bench.device->before_run = [&](int64_t) {
      if (fails) throw DeviceError(Fault::kRunError, "error state");
    };
    Projection projection({.rows = rows, .norm = true, .skip = true});
    const Values y = projection.y, sum = projection.sum;
    std::string message;
    try {
      bench.Run({projection.Step()});
    } catch (const Error& error) {
      message = error.what();
    }
    Check(message.find("error state") != std::string::npos &&
              message.find("NPU Reference") != std::string::npos,
          "the error says what and where, got: ", message);
    Check(projection.y.bytes == y.bytes && projection.sum.bytes == sum.bytes, "outputs changed");
    Check(bench.lines.empty() && bench.target->device_in_use(), "nothing is given up");
    fails = false;
    const auto want = projection.OnHost();
    bench.Run({projection.Step()});
    projection.Compare(want);
    Check(bench.target->counters().host_steps.empty(), "the device again");
  }
}

void NoMemory() {
  for (const Work& work : AllWork()) {
    Bench bench;
    bench.device->before_allocation = [](size_t bytes) {
      throw DeviceError(Fault::kAllocation, Concat("no memory for ", bytes, " bytes"));
    };
    work.run(bench);
    Check(bench.lines.size() == 1 && bench.lines[0].find("no memory") != std::string::npos,
          work.name, ": one line");
    Check(!bench.target->device_in_use() && bench.runs() == 0, "the host goes on");
    Check(bench.device->counters().buffers == 0, "buffers: ", bench.device->counters().buffers);
  }
}

void OpsTakeTheirBuffersAlong() {
  Bench bench;
  for (int i = 0; i < 3; ++i) {
    for (const Work& work : AllWork()) work.run(bench);
  }
  // The scratch memory of prompts stays.
  Check(bench.device->counters().buffers <= 2, bench.device->counters().buffers, " buffers left");
  bench.target.reset();
  Check(bench.device->counters().buffers == 0, bench.device->counters().buffers, " buffers left");
}

void ThreadsShareATarget() {
  Bench bench;
  const Layer layer;
  const ProjectionCase c{.norm = true, .gated = true};
  Projection projection(c), prompt({.rows = 5, .n = 128});
  const auto want = projection.OnHost();
  const auto prompt_want = prompt.OnHost();
  std::vector<Generator> generators;
  for (int i = 0; i < 3; ++i) generators.emplace_back(layer, 32);
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  std::mutex mutex;  // of the test's random numbers
  for (size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      try {
        for (int round = 0; round < 6; ++round) {
          {
            const std::lock_guard lock(mutex);
            generators[i].Append(*bench.target, round == 0 ? 5 : 1);
          }
          for (auto [work, result, right] :
               {std::tuple{&projection, Values(c.type, c.n), &want},
                std::tuple{&prompt, Values(c.type, 5 * 128), &prompt_want}}) {
            MatMulStep step = work->Step();
            step.y = result.data();
            bench.Run({step});
            Near("y", result, right->y, work->Bounds());
          }
        }
      } catch (const std::exception& error) {
        errors[i] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) Check(error.empty(), error);
  bench.OnlyDevice();
}

const std::map<std::string, void (*)()> kCases = {
    {"projections_of_a_token", ProjectionsOfAToken},
    {"projections_of_a_prompt", ProjectionsOfAPrompt},
    {"large_prompts", LargePrompts},
    {"tokens_of_all_kinds", TokensOfAllKinds},
    {"batch_rows_of_different_lengths", BatchRowsOfDifferentLengths},
    {"prompts_of_any_length", PromptsOfAnyLength},
    {"context_up_to_the_limit", ContextUpToTheLimit},
    {"generators_take_turns", GeneratorsTakeTurns},
    {"turns_of_a_conversation", TurnsOfAConversation},
    {"rewind_then_other_tokens", RewindThenOtherTokens},
    {"an_older_row_changed", AnOlderRowChanged},
    {"a_layer_in_three_runs", ALayerInThreeRuns},
    {"chained_steps_share_a_run", ChainedStepsShareARun},
    {"host_steps_have_reasons", HostStepsHaveReasons},
    {"refused_shapes", RefusedShapes},
    {"a_fault_is_cured_by_a_fresh_context", AFaultIsCuredByAFreshContext},
    {"a_lost_device_is_given_up", ALostDeviceIsGivenUp},
    {"raising_leaves_outputs_alone", RaisingLeavesOutputsAlone},
    {"no_memory", NoMemory},
    {"ops_take_their_buffers_along", OpsTakeTheirBuffersAlong},
    {"threads_share_a_target", ThreadsShareATarget},
};

}  // namespace
}  // namespace ort_aie::xrt

int main(int argc, char** argv) {
  using namespace ort_aie::xrt;
  if (argc != 3 || !kCases.contains(argv[2])) {
    std::fprintf(stderr, "usage: executor_test MANIFESTS CASE\n");
    return 2;
  }
  manifests = argv[1];
  try {
    kCases.at(argv[2])();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[2], error.what());
    return 1;
  }
  return 0;
}
