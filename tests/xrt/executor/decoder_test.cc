// Whole decoders.
#include "decoder.h"

#include <thread>

#include "targets/npu/schedule/reasons.h"

namespace ort_aie::npu_target {
namespace {

const Family kFamilies[] = {
    {.name = "llama"},
    {.name = "qwen3", .qk_norm = true},
    {.name = "gemma3",
     .qk_norm = true,
     .norms_behind = true,
     .gelu = true,
     .window = 5,
     .every = 6},
    {.name = "phi3", .packed = true, .rotary_dim = 32},
    {.name = "mistral", .window = 5},
};

struct Moved {
  int64_t submissions, runs, to, from;
};

Moved MovedBy(const Bench& bench, const Plan& plan) {
  const Counters before = bench.device->counters();
  bench.Run(plan);
  const Counters after = bench.device->counters();
  return {after.submissions - before.submissions, after.runs - before.runs,
          after.bytes_to - before.bytes_to, after.bytes_from - before.bytes_from};
}

// One submission a token, of few runs, for any number of layers; only the token's data moves to and
// from the device.
void TokensOfDecoders() {
  for (const Family& family : kFamilies) {
    for (const int64_t layers : {2, 36}) {
      const WholeDecoder::Model model(family, layers);
      Bench bench;
      WholeDecoder device(model, true), host(model, true);
      int64_t buffers = 0;
      for (int64_t token = 0; token < 4; ++token) {
        const int64_t id = 37 * token + 5;
        const Moved moved = MovedBy(bench, device.Token(id));
        HostTarget().Execute(host.Token(id), kThreads);
        const auto of = [&](const char* what) {
          return Concat(what, " of ", family.name, ", ", layers, " layers, token ", token, ": ");
        };
        Check(moved.submissions == 1, of("submissions"), moved.submissions);
        Check(moved.runs <= 3, of("runs"), moved.runs);
        // Logits, and for each layer a rotated key and a value, as projected: with the columns
        // packed beside them, or with zeros up to whole blocks.
        const int64_t row = family.kv_heads * WholeDecoder::kDim;
        const int64_t packed = family.packed ? WholeDecoder::kHeads * WholeDecoder::kDim + row : 0;
        const int64_t rows = 2 * row + 2 * RoundUp(packed + row, q4nx::kBlockCols);
        const int64_t logits = 2 * RoundUp(WholeDecoder::kVocabulary, q4nx::kBlockCols);
        Check(moved.from <= layers * rows + logits, of("bytes from the device"), moved.from);
        // The embedding, as a row to normalise and as a residual, and cosines and sines.
        if (token > 0)
          Check(moved.to <= 4 * WholeDecoder::kHidden + 512, of("bytes to the device"), moved.to);
        if (token == 1) buffers = bench.device->counters().buffers;
        if (token > 1) {
          Check(bench.device->counters().buffers == buffers, of("buffers"),
                bench.device->counters().buffers, ", before ", buffers);
        }
        Close(device.logits, host.logits, Bound(layers));
        device.Advance();
        host.Advance();
      }
      const ExecutorCounters counters = bench.target->counters();
      for (const auto& [reason, count] : counters.host_steps) {
        Check(count == 4 && counters.host_steps.size() <= 2, count, " steps of ", family.name,
              " on the host: ", reason);
      }
      Check(counters.cache_rows_sent == 0, counters.cache_rows_sent, " rows were sent");
      Check(bench.lines.empty(), "reported: ", bench.lines.empty() ? "" : bench.lines[0]);
    }
  }
}

// NPU1 has no lists of runs, so a submission is a run, and of a token only the projections have an
// overlay: the host computes the rest between them, and attention has a reason.
void TokensOfDecodersOnNpu1() {
  for (const Family& family : kFamilies) {
    const int64_t layers = 3;
    const WholeDecoder::Model model(family, layers);
    Bench bench({"fused_dqp", "dequant", "gemm"}, {}, "npu1");
    WholeDecoder device(model, true), host(model, true);
    for (int64_t token = 0; token < 3; ++token) {
      const Moved moved = MovedBy(bench, device.Token(token));
      HostTarget().Execute(host.Token(token), kThreads);
      // Queries, keys and values; O; gate and up; down. Finally logits.
      Check(moved.submissions == 4 * layers + 1, "submissions of ", family.name, ": ",
            moved.submissions);
      Check(moved.runs == moved.submissions, "runs of ", family.name, ": ", moved.runs);
      Close(device.logits, host.logits, Bound(layers));
      device.Advance();
      host.Advance();
    }
    const auto between = bench.target->counters().host_steps_between;
    Check(between.contains("no overlay decode or flow_kv"), "the reason of ", family.name);
  }
}

// In one hardware context, a prompt is one submission, with the last token's logits. If the host
// prepares the keys, that divides it at each attention. In contexts of their own, it is one
// submission of dequantisation, one of GEMM before the first attention and one after each, the
// attention itself, and one for the logits.
void PromptsOfDecoders() {
  for (const Family& family : kFamilies) {
    const int64_t layers = 3;
    const WholeDecoder::Model model(family, layers);
    for (const int64_t rows : {2, 63, 64, 100}) {
      Bench bench, apart;
      apart.device->one_context = false;
      WholeDecoder device(model, true), other(model, true), host(model, true);
      // The second prompt continues a cache, and a token follows.
      for (const int64_t count : {rows, int64_t{5}, int64_t{1}}) {
        std::vector<int64_t> ids;
        for (int64_t i = 0; i < count; ++i) ids.push_back((37 * i + 5 * count) % 320);
        const Moved moved = MovedBy(bench, device.Tokens(ids));
        const Moved by_context = MovedBy(apart, other.Tokens(ids));
        HostTarget().Execute(host.Tokens(ids), kThreads);
        // Norms between layers, which the host does for rows that are not whole blocks' columns.
        const bool whole = count >= 64 || count == 1;
        const int64_t expected = whole ? 1 : 1 + 2 * layers;
        Check(moved.submissions == expected, "submissions of ", family.name, ", ", count,
              " tokens: ", moved.submissions, ", expected ", expected);
        const int64_t most = count == 1 ? 1 : 1 + (layers + 1) + layers + 1;
        Check(by_context.submissions == most, "in contexts of their own, ", family.name, ", ",
              count, " tokens: ", by_context.submissions, ", expected ", most);
        Check(device.logits.bytes == other.logits.bytes, "other bits in contexts of their own");
        Close(device.logits, host.logits, Bound(layers));
        if (rows >= 64 && count == rows) {
          Check(bench.target->counters().cache_rows_sent == 0, "the device appends");
        }
        device.Advance();
        other.Advance();
        host.Advance();
      }
      const ExecutorCounters counters = bench.target->counters();
      for (const auto& [reason, steps] : counters.host_steps) {
        Check(reason == "rows of an embedding" ||
                  reason == "a vector operator on what the host has" ||
                  (reason == "a vector operator on several rows" && family.norms_behind),
              steps, " steps of ", family.name, " on the host: ", reason);
      }
      const auto divided = counters.host_steps_between.find(Words(Reason::kFewKeys));
      Check(divided != counters.host_steps_between.end() &&
                divided->second == layers * (rows < 64 ? 2 : 1),
            "the reason of ", family.name);
      Check(bench.lines.empty(), "reported: ", bench.lines.empty() ? "" : bench.lines[0]);
    }
  }
}

// If there is no room for all layers' weights, they come layer by layer, when the overlay changes
// anyway.
void WeightsOfPromptsLayerByLayer() {
  const WholeDecoder::Model model(kFamilies[0], 3);
  // The weights between two attentions.
  constexpr int64_t kLayer = 2 * 256 * (256 + 128 + 128 + 256 + 3 * 512);
  for (const auto& [room, times] : {std::pair{3 * kLayer, 1}, {2 * kLayer, 2}, {kLayer, 4}}) {
    ExecutorOptions options;
    options.weight_bytes = room;
    Bench bench(kAll, options);
    bench.device->one_context = false;
    WholeDecoder device(model, true), host(model, true);
    const Moved moved = MovedBy(bench, device.Tokens({1, 2, 3}));
    Check(moved.submissions == times + 4 + 3 + 1, "room of ", room, ": ", moved.submissions);
    HostTarget().Execute(host.Tokens({1, 2, 3}), kThreads);
    Close(device.logits, host.logits, Bound(3));
  }
}

// The device works on the rows chunk by chunk; a plan's rows need no room for all of the gate.
void LongPromptsOfDecoders() {
  const WholeDecoder::Model model(kFamilies[0], 2);
  ExecutorOptions options;
  options.row_bytes = options.query_bytes = 1;
  Bench bench(kAll, options);
  WholeDecoder device(model, true), host(model, true);
  std::vector<int64_t> ids(530, 7);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * i % 320);
  const Moved moved = MovedBy(bench, device.Tokens(ids));
  Check(moved.submissions == 1, "submissions: ", moved.submissions);
  const auto chunks = std::ranges::count(bench.device->sequences, "attention");
  Check(chunks == 2 * 9, "nine chunks of attention, got ", chunks);
  HostTarget().Execute(host.Tokens(ids), kThreads);
  Close(device.logits, host.logits, Bound(2));
}

// Each fault stops a different run of a prompt: the host's data is either unchanged or complete.
void AFaultInTheMiddleOfAPrompt() {
  const WholeDecoder::Model model(kFamilies[1], 2);
  for (int64_t faulty = 0; faulty < 7; ++faulty) {
    for (const bool forever : {false, true}) {
      Bench bench;
      WholeDecoder device(model, true), host(model, true);
      int64_t first = -1;
      bench.device->before_run = [&](int64_t run) {
        if (first >= 0 && (run == first + faulty || (forever && run > first + faulty))) {
          throw DeviceError(Fault::kTimeout, "a run took more than 2.5 s");
        }
      };
      for (const std::vector<int64_t>& ids :
           {std::vector<int64_t>{1, 2}, {3, 4, 5, 6}, {7}, {8, 9}}) {
        if (ids.size() == 4) first = bench.runs();
        bench.Run(device.Tokens(ids));
        HostTarget().Execute(host.Tokens(ids), kThreads);
        Close(device.logits, host.logits, Bound(2), forever);
        device.Advance();
        host.Advance();
      }
      const ExecutorCounters counters = bench.target->counters();
      Check(counters.retries == 1 && counters.fallbacks == (forever ? 1 : 0), "one retry");
      Check(bench.target->device_in_use() != forever && bench.lines.size() == 1, "one line");
    }
  }
}

// Gate and up need more scratch memory than the projections before them. A batch still reads those
// weights there while the memory grows, and no other thread gets it in between.
void PromptsOfSeveralThreads() {
  const WholeDecoder::Model models[] = {{kFamilies[0], 2}, {kFamilies[1], 2}};
  const std::vector<int64_t> ids = {1, 2, 3};
  std::vector<Values> want;
  for (const WholeDecoder::Model& model : models) {
    WholeDecoder host(model, true);
    HostTarget().Execute(host.Tokens(ids), kThreads);
    want.push_back(host.logits);
  }
  ExecutorOptions options;
  options.weight_bytes = 2 * 256 * (256 + 128 + 128 + 256);  // all but the MLP's
  for (int round = 0; round < 8; ++round) {                  // it grows once on each device
    Bench bench(kAll, options);
    std::vector<std::string> errors(4);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < errors.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          WholeDecoder device(models[i % 2], true);
          bench.Run(device.Tokens(ids));
          Close(device.logits, want[i % 2], Bound(2));
        } catch (const std::exception& error) {
          errors[i] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) Check(error.empty(), error);
  }
}

// Where the device has overlays for a form, it reads weights as they are; otherwise they are
// widened, for the same bits.
void WeightsInTheirForm() {
  constexpr WeightForm kForm = {WeightKind::kQ4NX, 128, true};
  constexpr WeightForm kSymmetric = {WeightKind::kQ4NX, 128, false};
  using Reasons = std::map<std::string, int64_t>;
  struct Case {
    WeightForm layers, vocabulary;
    Reasons widened;  // of two layers with seven matrices each
  };
  const Case cases[] = {
      {kForm, kForm, {}},
      {kSymmetric, kForm, {{"no overlays for groups of 128, symmetric", 14}}},
      {kForm, {}, {{"other weights of the plan have another form", 14}}},
  };
  Designs with_form = kAll;
  with_form.insert({"decode_128", "dequant_128"});
  for (const Case& c : cases) {
    const WholeDecoder::Model model(kFamilies[0], 2, c.layers, c.vocabulary);
    std::vector<std::vector<uint8_t>> logits;
    for (const Designs& designs : {with_form, kAll}) {
      const Bench bench(designs);
      WholeDecoder device(model, true);
      for (const std::vector<int64_t>& ids : {std::vector<int64_t>{1, 2, 3}, {4}, {5}}) {
        bench.Run(device.Tokens(ids));
        logits.push_back(device.logits.bytes);
        device.Advance();
      }
      const Reasons widened = bench.target->counters().widened;
      Check(designs == kAll ? !widened.empty() : widened == c.widened, "widened for ",
            widened.empty() ? "no reason" : widened.begin()->first);
    }
    for (size_t i = 0; i < 3; ++i) Check(logits[i] == logits[i + 3], "other bits of call ", i);
    // A node by itself has the overlay of all others.
    const Bench bench(with_form);
    WholeDecoder nodes(model, false);
    for (const Step& step : nodes.Token(1).steps) bench.Run({step});
    Check(bench.target->counters().widened.contains("not a projection of a plan"), "the reason");
  }
}

const Cases kDecoderCases({
    {"weights_in_their_form", WeightsInTheirForm},
    {"prompts_of_several_threads", PromptsOfSeveralThreads},
    {"prompts_of_decoders", PromptsOfDecoders},
    {"weights_of_prompts_layer_by_layer", WeightsOfPromptsLayerByLayer},
    {"long_prompts_of_decoders", LongPromptsOfDecoders},
    {"a_fault_in_the_middle_of_a_prompt", AFaultInTheMiddleOfAPrompt},
    {"tokens_of_decoders_on_npu1", TokensOfDecodersOnNpu1},
    {"tokens_of_decoders", TokensOfDecoders},
});

}  // namespace
}  // namespace ort_aie::npu_target
