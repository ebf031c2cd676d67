// Plans of several steps.
#include <map>

#include "layer.h"
#include "q4nx/bfloat16.h"

namespace ort_aie::npu_target {
namespace {

struct Token {
  int64_t submissions, runs;
};

// Executes the plan, and returns the counts.
Token CountedIn(const Bench& bench, const Plan& plan) {
  const Counters before = bench.device->counters();
  bench.Run(plan);
  const Counters after = bench.device->counters();
  return {after.submissions - before.submissions, after.runs - before.runs};
}

// Stores the contents of the device's cache at the end of each attention, as (k, v).
void Watch(Bench& bench, std::vector<std::vector<uint8_t>>& caches) {
  bench.device->after_call = [&](const npu::Invocation& invocation,
                                 const std::map<std::string, uint8_t*>& places) {
    if (invocation.sequence != "attention") return;
    const auto p = [&](const char* name) { return invocation.parameters.at(name); };
    const auto bytes = static_cast<size_t>(2 * p("kv_heads") * p("capacity") * p("head_dim"));
    for (const char* name : {"k", "v"}) {
      caches.emplace_back(places.at(name), places.at(name) + bytes);
    }
  };
}

// The first rows of the present, as bfloat16, equal the device's.
void SameCache(const Layer& layer, const Generator& generator, int64_t rows,
               const std::vector<std::vector<uint8_t>>& caches) {
  Check(caches.size() == 2, "one attention, got ", caches.size() / 2);
  for (const bool values : {false, true}) {
    const Values& truth = values ? generator.values : generator.keys;
    const std::vector<float> x = truth.floats();
    const auto* device = reinterpret_cast<const uint16_t*>(caches[values ? 1 : 0].data());
    const int64_t held = static_cast<int64_t>(x.size()) / (layer.kv_heads * layer.dim);
    const int64_t capacity =
        static_cast<int64_t>(caches[0].size()) / (2 * layer.kv_heads * layer.dim);
    for (int64_t i = 0; i < layer.kv_heads * rows * layer.dim; ++i) {
      const int64_t d = i % layer.dim, key = i / layer.dim % rows;
      const int64_t head = i / layer.dim / rows;
      const int64_t tile = (head * capacity + key / 8 * 8) * layer.dim + d / 8 * 64;
      const float want = x[static_cast<size_t>((head * held + key) * layer.dim + d)];
      Check(device[tile + key % 8 * 8 + d % 8] == FloatToBfloat16(want), "row ", key, " of head ",
            head, values ? " of the values" : " of the keys", " differs");
    }
  }
}

void ALayerIsOneSubmission() {
  const Layer rotary{.rotary = true};
  Layer packed_16 = rotary, qk_norm = rotary, neighbours = rotary, partial = rotary, wide = rotary;
  packed_16.type = packed_16.cache_type = DataType::kFloat16;
  qk_norm.qk_norm = true;
  neighbours.interleaved = true;
  partial.rotary_dim = 32;
  wide.dim = 128;
  wide.heads = 2;
  wide.kv_heads = 1;
  wide.qk_norm = true;
  for (const LayerShape& shape :
       std::vector<LayerShape>{{},
                               {.packed = false},
                               {.bias = true},
                               {.attention = packed_16, .bias = true},
                               {.attention = {.type = DataType::kBfloat16, .rotary = true}},
                               {.attention = {.cache_type = DataType::kFloat32, .rotary = true}},
                               {.attention = qk_norm},
                               {.attention = qk_norm, .packed = false},
                               {.attention = neighbours},
                               {.attention = partial},
                               {.attention = wide, .hidden = 512},
                               {.attention = {.window = 3}},
                               {.attention = {.heads = 12, .kv_heads = 3, .rotary = true}},
                               {.attention = {.heads = 20, .kv_heads = 5, .rotary = true}},
                               {.attention = {.qk_norm = true}}}) {
    const Layer& layer = shape.attention;
    Bench bench;
    std::vector<std::vector<uint8_t>> caches;
    Watch(bench, caches);
    // One of them has a new present for each token. Eleven tokens: more than a group of eight keys.
    TestedLayer decoder(shape, layer.window > 0 ? 0 : 64);
    for (int64_t token = 0; token < 11; ++token) {
      caches.clear();
      bench.device->sequences.clear();
      const Values x(layer.type, Exact(shape.hidden));
      const Token counted = CountedIn(bench, decoder.Steps(x));
      // Activations, three or five matrices and the cache, and four or two more matrices.
      Check(counted.submissions == 1 && counted.runs == 2, "one submission of two runs, got ",
            counted.submissions, " of ", counted.runs);
      decoder.Compare();
      SameCache(layer, decoder.generator, decoder.generator.past[0], caches);
    }
    // The norm of queries, keys and values is computed once.
    std::vector<std::string> expected = {"rms_norm"};
    expected.insert(expected.end(), decoder.qkv.size(), "matvec");
    // Three or five heads of 64 run as two or four, and one.
    const int64_t parts = layer.kv_heads % 2 == 0 || layer.kv_heads == 1 ? 1 : 2;
    if (layer.rotary || layer.qk_norm) {
      expected.insert(expected.end(), layer.kv_heads == 3 ? 3 : 2, "rope");
    }
    expected.insert(expected.end(), static_cast<size_t>(2 * parts), "append");
    expected.insert(expected.end(),
                    {"attention", "matvec", "rms_norm", "matvec", "matvec", "glu", "matvec"});
    Check(bench.device->sequences == expected, "other sequences");
    const ExecutorCounters counters = bench.target->counters();
    Check(counters.cache_rows_sent == 0, counters.cache_rows_sent, " rows of the cache were sent");
    Check(counters.cache_rows_kept == 55 * 2 * layer.kv_heads, "the copy is kept");
    // A separate op's prompt and token continue with that copy.
    Generator& generator = decoder.generator;
    const std::vector<std::pair<int64_t, int64_t>> turns = {{5, 5}, {1, 1}};
    for (const auto& [tokens, rows] : turns) {
      const int64_t sent = bench.target->counters().cache_rows_sent;
      generator.Append(*bench.target, tokens);
      const int64_t now = bench.target->counters().cache_rows_sent - sent;
      Check(now == rows * 2 * layer.kv_heads, "a prompt sends its own rows, got ", now);
    }
    // And after a rewind.
    generator.past = {13};
    const Values x(layer.type, Exact(shape.hidden));
    const Token counted = CountedIn(bench, decoder.Steps(x));
    Check(counted.submissions == 1, "one submission after a rewind");
    decoder.Compare();
    bench.OnlyDevice();
  }
}

// The second layer begins with the sum of the first's residual and its MLP, both on the device.
Plan TwoLayers(TestedLayer& a, TestedLayer& b, const Values& x) {
  Plan plan = a.Steps(x);
  for (const Step& step : b.Steps(a.down.y, &a.mlp.sum).steps) plan.steps.push_back(step);
  return plan;
}

void TwoLayersAreOneSubmission() {
  const LayerShape first{}, second{.skip = true};
  Bench bench;
  TestedLayer a(first, 16), b(second, 16);
  for (int token = 0; token < 3; ++token) {
    const Values x(DataType::kFloat32, Exact(first.hidden));
    const Token counted = CountedIn(bench, TwoLayers(a, b, x));
    // Ten buffers plus the activations, four a run.
    Check(counted.submissions == 1 && counted.runs == 3, "one submission of three runs, got ",
          counted.submissions, " of ", counted.runs);
    a.Compare();
    b.Compare();
  }
  bench.OnlyDevice();
}

// All caches of a program's layers share one buffer, whatever their shapes, and grow together.
void CachesOfAProgramAreOneBuffer() {
  const LayerShape global{.attention = {.rotary = true, .qk_norm = true}},
      local{.attention = {.heads = 2,
                          .kv_heads = 1,
                          .dim = 128,
                          .window = 10,
                          .rotary = true,
                          .windowed_cache = true},
            .skip = true};
  for (const bool in_place : {false, true}) {
    Bench bench;
    TestedLayer a(global, in_place ? 600 : 0, in_place), b(local, 14, in_place),
        c(local, 14, in_place);
    const auto kept = std::make_shared<KeptState>();
    int64_t buffers = 0, sent = 0;
    const auto token = [&](bool projections = true) {
      const Values x(DataType::kFloat32, Exact(global.hidden));
      Plan plan = a.Steps(x);
      for (const Step& step : b.Steps(a.down.y, &a.mlp.sum).steps) plan.steps.push_back(step);
      for (const Step& step : c.Steps(b.down.y, &b.mlp.sum).steps) plan.steps.push_back(step);
      plan.kept = kept;
      sent = bench.target->counters().cache_rows_sent;
      Check(CountedIn(bench, plan).submissions == 1, "one submission");
      sent = bench.target->counters().cache_rows_sent - sent;
      buffers = bench.device->counters().buffers;
      for (TestedLayer* layer : {&a, &b, &c}) {
        if (projections) layer->CompareProjections();
        layer->CompareAttention();
      }
    };
    token();
    Check(buffers == 3, "one of weights, one of caches, one of rows, got ", buffers);
    for (int i = 1; i < 256; ++i) {
      token(false);  // only attention changes with the tokens before
      Check(sent == 0, "the device appends, but ", sent, " rows were sent");
    }
    token();  // all layers move to a larger buffer
    const int64_t layer = 2 * 2 * 256;
    Check(sent > layer - 4 && sent <= layer + 2 * 2 * 14, "all rows once, got ", sent);
    Check(buffers == 3, "as before, got ", buffers);
    token();
    Check(sent == 0, "and no more");
    // A generator that changes a row of one layer sends that layer. If the cache is not in place,
    // it counts as another generator.
    const size_t row = (in_place ? 600 : 258) + 200;  // of the second head
    a.generator.keys.bytes[row * 64 * 2 + 1] ^= 0x80;
    token();
    const int64_t others = in_place ? 0 : 2 * 2 * 9;
    Check(sent == 2 * 2 * 258 + others, "the layer's rows, got ", sent);
    bench.OnlyDevice();
  }
}

// Attention of several rows that an earlier step of the batch makes: each has a separate place. The
// host prepares those with a norm after the rotation.
void ABatchPreparedOnTheDevice() {
  for (Layer layer : std::vector<Layer>{{.rotary = true, .qk_norm = true},
                                        {.rotary = true, .qk_norm = true, .v_norm = true},
                                        {.v_norm = true},
                                        {.rotary = true, .k_norm = true, .norm_after_rotary = true},
                                        {.heads = 6, .kv_heads = 3, .dim = 40, .v_norm = true},
                                        {},
                                        {.window = 8, .rotary = true, .windowed_cache = true},
                                        {.rotary = true, .padding = {0, 3, 7}}}) {
    layer.batch = 3;
    const int64_t width = (layer.heads + 2 * layer.kv_heads) * layer.dim;
    Bench bench;
    Generator generator(layer, layer.windowed_cache ? 10 : 64);
    generator.Append(*bench.target, 9, {9, 8, layer.padding.empty() ? 1 : 9});
    Projection projection({.k = 256, .n = layer.batch * width});
    for (int token = 0; token < 12; ++token) {
      projection.a = Values(layer.type, Exact(256));
      AttentionStep step = generator.Step(1, {});
      step.query = projection.y.data();
      step.key = host::Advance(projection.y.data(), layer.type, layer.heads * layer.dim);
      step.value = host::Advance(projection.y.data(), layer.type,
                                 (layer.heads + layer.kv_heads) * layer.dim);
      step.query_stride = step.key_stride = step.value_stride = width;
      const int64_t count = layer.batch * layer.heads * layer.dim;
      Values keys = generator.keys, values = generator.values, want(layer.type, count),
             output(layer.type, count);
      AttentionStep host = step;
      step.past_key = step.present_key = generator.keys.data();
      step.past_value = step.present_value = generator.values.data();
      step.output = output.data();
      const int64_t submissions = CountedIn(bench, {projection.Step(), step}).submissions;
      Check(submissions == (layer.norm_after_rotary ? 2 : 1), "got ", submissions, " submissions");
      projection.Compare(projection.OnHost());
      host.past_key = host.present_key = keys.data();
      host.past_value = host.present_value = values.data();
      host.output = want.data();
      HostTarget().Execute({host}, kThreads);
      // As for one row: TestedLayer::CompareAttention.
      const int roundings = layer.qk_norm + layer.k_norm + (layer.rotary ? 2 : layer.qk_norm);
      const double query = Roundings(roundings), key = Roundings(roundings + 1);
      // The device rounds a normalised value, and a norm's weight if heads have zeros behind them.
      const bool padded = PaddedHeadDim(layer.dim) != layer.dim;
      const double value = layer.v_norm ? Roundings(2 + (padded ? 1 : 0)) : 0;
      Near("output", output, want, AttentionBounds(host, query, key, {}, value));
      std::vector<double> bounds;
      for (const float v : values.floats()) bounds.push_back(value * std::abs(v));
      Near("the present's values", generator.values, values, bounds);
      bounds.clear();
      const std::vector<float> right = keys.floats();
      for (size_t i = 0; i < right.size(); ++i) {
        const auto d = static_cast<int64_t>(i) % layer.dim;
        bounds.push_back(key * PairLength(host, right.data() + (static_cast<int64_t>(i) - d), d));
      }
      Near("the present's keys", generator.keys, keys, bounds);
      generator.Advance(step);
    }
    bench.OnlyDevice();
  }
}

// The state that a program keeps: its weights share buffers, as many as their size needs.
void WeightsOfAPlanShareABuffer() {
  for (const size_t most : {kMaxBufferBytes, size_t{200'000}}) {
    const LayerShape first{}, second{.skip = true};
    Bench bench;
    bench.device->most_pinned = most;
    TestedLayer a(first, 16), b(second, 16);
    const auto kept = std::make_shared<KeptState>();
    for (int token = 0; token < 4; ++token) {
      if (token == 2) {  // of the first token, nothing is left
        bench.device->before_run = [&](int64_t) {
          bench.device->before_run = nullptr;
          throw DeviceError(Fault::kTimeout, "a run took more than 2.5 s");
        };
      }
      const Values x(DataType::kFloat32, Exact(first.hidden));
      Plan plan = TwoLayers(a, b, x);
      plan.kept = kept;
      const Token counted = CountedIn(bench, plan);
      // Activations, caches, and 740,000 bytes of weights.
      const int64_t runs = most == kMaxBufferBytes ? 1 : 2, tries = token == 2 ? 2 : 1;
      Check(counted.submissions == tries, "one submission, got ", counted.submissions);
      Check(counted.runs == runs + tries - 1, "runs: ", counted.runs);
      a.Compare();
      b.Compare();
    }
    bench.device->before_run = nullptr;
    Check(bench.target->counters().retries == 1, "one retry");
  }
}

// Attention of well-known models, at full size.
void AttentionOfKnownModels() {
  const Layer llama_1b{.heads = 32, .kv_heads = 8, .rotary = true},
      qwen3_4b{.heads = 32, .kv_heads = 8, .dim = 128, .rotary = true, .qk_norm = true},
      gemma3_1b{.heads = 4,
                .kv_heads = 1,
                .dim = 256,
                .window = 512,
                .rotary = true,
                .qk_norm = true,
                .windowed_cache = true},
      gemma3_4b{.heads = 8, .kv_heads = 4, .dim = 256, .rotary = true, .qk_norm = true},
      phi3_mini{.heads = 32, .kv_heads = 32, .dim = 96, .window = 2047, .rotary = true},
      phi4_mini{.heads = 24, .kv_heads = 8, .dim = 128, .rotary = true, .rotary_dim = 96},
      mistral_7b{.heads = 32, .kv_heads = 8, .dim = 128, .window = 4096, .rotary = true},
      // Not rotated at all.
      heads_of_80{.heads = 32, .kv_heads = 16, .dim = 80},
      // Rows that do not fill whole objects of the device; norms of heads with zeros behind them.
      heads_of_32{.heads = 8, .kv_heads = 2, .dim = 32, .rotary = true},
      odd_heads_of_40{.heads = 6, .kv_heads = 3, .dim = 40, .qk_norm = true},
      normalised_96{.heads = 6, .kv_heads = 3, .dim = 96, .rotary = true, .qk_norm = true};
  for (const Layer& layer :
       {llama_1b, qwen3_4b, gemma3_1b, gemma3_4b, phi3_mini, phi4_mini, mistral_7b, heads_of_80,
        heads_of_32, odd_heads_of_40, normalised_96}) {
    for (const bool in_place : {false, true}) {
      Bench bench;
      TestedLayer decoder({.attention = layer}, in_place || layer.windowed_cache ? 600 : 0,
                          in_place);
      for (int token = 0; token < 3; ++token) {
        const Values x(layer.type, Exact(256));
        Check(CountedIn(bench, decoder.Steps(x)).submissions == 1, "heads of ", layer.dim);
        decoder.Compare();
      }
      Check(bench.target->counters().cache_rows_sent == 0, "the device appends");
      bench.OnlyDevice();
    }
  }
}

// The host does what `rope` and `append` cannot do, between two submissions.
void LayersThatTheHostPrepares() {
  for (const Layer& layer : std::vector<Layer>{{.rotary = true, .sinks = true},
                                               {.dim = 80, .rotary = true},
                                               {.cache_type = DataType::kInt8, .rotary = true},
                                               {.rotary = true, .rotary_dim = 16}}) {
    Bench bench;
    TestedLayer decoder({.attention = layer}, 32);
    for (int token = 0; token < 3; ++token) {
      const Values x(layer.type, Exact(256));
      const Token counted = CountedIn(bench, decoder.Steps(x));
      // The output of codes is not scaled, so O also gets it from the host.
      const bool scaled = layer.cache_type == DataType::kInt8;
      Check(counted.submissions == (scaled ? 3 : 2), "got ", counted.submissions);
      decoder.Compare();
    }
    const ExecutorCounters counters = bench.target->counters();
    if (layer.sinks) {  // the host does all of the attention
      Check(counters.host_steps == std::map<std::string, int64_t>{{"head_sink", 3}}, "a reason");
    } else {
      Check(counters.cache_rows_sent == 3 * 2 * layer.kv_heads, "the host's rows");
      bench.OnlyDevice();
    }
  }
}

// float16 cannot hold small bfloat16 values: the present has other values, which the device then
// gets.
void RowsThatTheCacheRounds() {
  LayerShape shape;
  shape.attention.cache_type = DataType::kFloat16;
  Bench bench;
  std::vector<std::vector<uint8_t>> caches;
  Watch(bench, caches);
  TestedLayer decoder(shape, 64);
  for (int64_t token = 0; token < 10; ++token) {
    caches.clear();
    const Values x(DataType::kFloat32, Exact(shape.hidden, 0x1p-30f));
    Check(CountedIn(bench, decoder.Steps(x)).submissions == 1, "one submission");
    SameCache(shape.attention, decoder.generator, token, caches);
    decoder.generator.past = {token + 1};
    const int64_t sent = bench.target->counters().cache_rows_sent;
    Check(sent == token * 4, "each new row of two heads once, with the next token; got ", sent);
  }
  bench.OnlyDevice();
}

void AFaultInTheMiddleOfALayer() {
  for (const int64_t faulty : {0, 1}) {
    for (const bool forever : {false, true}) {
      const LayerShape shape;
      Bench bench;
      TestedLayer decoder(shape, 16);
      int64_t first = -1;
      bench.device->before_run = [&](int64_t run) {
        if (first >= 0 && (run == first + faulty || (forever && run > first + faulty))) {
          throw DeviceError(Fault::kTimeout, "a run took more than 2.5 s");
        }
      };
      for (int token = 0; token < 4; ++token) {
        if (token == 2) first = bench.runs();
        const Values x(DataType::kFloat32, Exact(shape.hidden));
        const Token counted = CountedIn(bench, decoder.Steps(x));
        const int64_t expected = token < 2 || (token == 3 && !forever) ? 1 : token == 2 ? 2 : 0;
        Check(counted.submissions == expected, "token ", token, ": ", expected,
              " submissions, got ", counted.submissions);
        decoder.Compare();
      }
      const ExecutorCounters counters = bench.target->counters();
      Check(counters.retries == 1 && counters.fallbacks == (forever ? 1 : 0), "one retry");
      Check(bench.target->device_in_use() != forever && bench.lines.size() == 1, "one line");
      Check(counters.host_steps.empty() != forever, "the host goes on, or the device");
    }
  }
}

// A windowed cache that is in place is the input of a second attempt, so a failed one must not
// change it.
void AFaultWithACacheOfAWindow() {
  const LayerShape shape{.attention = {.window = 6, .rotary = true, .windowed_cache = true}};
  for (const bool forever : {false, true}) {
    Bench bench;
    TestedLayer decoder(shape, 7);
    bool faulty = false;
    bench.device->before_run = [&](int64_t) {
      if (!faulty) return;
      faulty = forever;
      throw DeviceError(Fault::kTimeout, "a run took more than 2.5 s");
    };
    for (int token = 0; token < 20; ++token) {
      faulty = faulty || token == 12;
      const Values x(DataType::kFloat32, Exact(shape.hidden));
      bench.Run(decoder.Steps(x));
      decoder.Compare();
    }
    Check(bench.target->counters().retries == 1, "one retry");
    Check(bench.target->device_in_use() != forever, "the device, or the host");
  }
}

// The same if the host does the attention, among steps of the device.
void AFaultBesideACacheOfAWindow() {
  const Layer layer{.window = 6, .sinks = true, .windowed_cache = true};
  Bench bench;
  Generator generator(layer, 7);
  generator.Append(HostTarget(), 7);
  Projection projection({.k = 256});
  const Values query(layer.type, Exact(256)), kv(layer.type, Exact(128));
  Values keys = generator.keys, values = generator.values, output(layer.type, 256), want = output;
  AttentionStep step = generator.Step(1, {});
  step.query = query.data();
  step.key = step.value = kv.data();
  step.past_key = step.present_key = generator.keys.data();
  step.past_value = step.present_value = generator.values.data();
  step.output = output.data();
  AttentionStep host = step;
  host.past_key = host.present_key = keys.data();
  host.past_value = host.present_value = values.data();
  host.output = want.data();
  bench.device->before_run = [&](int64_t) {
    bench.device->before_run = nullptr;
    throw DeviceError(Fault::kTimeout, "a run took more than 2.5 s");
  };
  bench.Run({projection.Step(), step});
  HostTarget().Execute({host}, kThreads);
  Check(bench.target->counters().retries == 1, "one retry");
  Check(generator.keys.bytes == keys.bytes && generator.values.bytes == values.bytes,
        "the cache was moved on twice");
  Check(output.bytes == want.bytes, "another output");
  projection.Compare(projection.OnHost());
}

void ChainedStepsShareARun() {
  // The second reads the first one's result, the third reads the sum of the second.
  Projection first({.k = 256}), second({.k = 256, .norm = true, .skip = true}), third({.k = 256});
  Bench bench;
  MatMulStep a = first.Step(), b = second.Step(), c = third.Step();
  b.a = first.y.data();
  c.a = second.sum.data();
  bench.Run({a, b, c});
  Check(bench.runs() == 1, "one run, got ", bench.runs());
  first.Compare(first.OnHost());
  second.a = first.y;
  second.CompareRounded(second.OnHost());
  third.a = second.sum;
  third.Compare(third.OnHost());
  bench.OnlyDevice();
}

void PartsOfTensorsAreFound() {
  Projection wide({.k = 256, .n = 512}), half({.k = 256});
  for (const int64_t element : {0, 2, 256, 1, 258}) {
    Bench bench;
    // The last one ends beyond the result; an odd one begins where no transfer can.
    const bool inside = element % 2 == 0 && element <= 256;
    wide.y = Values(DataType::kFloat32, std::vector<float>(600));
    MatMulStep d = wide.Step(), e = half.Step();
    e.a = static_cast<const uint8_t*>(wide.y.data()) + element * 4;
    bench.Run({d, e});
    Check(bench.device->counters().submissions == (inside ? 1 : 2), "element ", element);
    const std::vector<float> y = wide.y.floats();
    half.a = Values(DataType::kFloat32, {y.begin() + element, y.begin() + element + 256});
    half.Compare(half.OnHost());
    bench.OnlyDevice();
  }
}

const Cases kPlansCases({
    {"a_layer_is_one_submission", ALayerIsOneSubmission},
    {"two_layers_are_one_submission", TwoLayersAreOneSubmission},
    {"caches_of_a_program_are_one_buffer", CachesOfAProgramAreOneBuffer},
    {"a_batch_prepared_on_the_device", ABatchPreparedOnTheDevice},
    {"weights_of_a_plan_share_a_buffer", WeightsOfAPlanShareABuffer},
    {"attention_of_known_models", AttentionOfKnownModels},
    {"layers_that_the_host_prepares", LayersThatTheHostPrepares},
    {"rows_that_the_cache_rounds", RowsThatTheCacheRounds},
    {"a_fault_in_the_middle_of_a_layer", AFaultInTheMiddleOfALayer},
    {"a_fault_with_a_cache_of_a_window", AFaultWithACacheOfAWindow},
    {"a_fault_beside_a_cache_of_a_window", AFaultBesideACacheOfAWindow},
    {"chained_steps_share_a_run", ChainedStepsShareARun},
    {"parts_of_tensors_are_found", PartsOfTensorsAreFound},
});

}  // namespace
}  // namespace ort_aie::npu_target
