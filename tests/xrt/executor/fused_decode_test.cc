// Tokens in one dispatch on an overlay like mlir-air's: what the device receives, checked by a
// device that unpacks it with separate loops, and what keeps a plan off the overlay.
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "decoder.h"
#include "fused_device.h"
#include "targets/npu/fused_decode/decoder_plan.h"
#include "targets/npu/fused_decode/package.h"

namespace ort_aie::npu_target {
namespace {

using fused_decode::Geometry;

constexpr int64_t kVocabulary = 700, kCapacity = 48, kPast = 5, kWindow = 40;

struct Variant {
  const char* name;
  bool gemma = false;     // four norms per layer, norms of heads, GELU, windowed caches
  bool separate = false;  // projections of queries, keys and values
  bool in_place = true;   // past and present are one buffer
  int64_t rotary_dim = 64;
  int64_t group = 0;
  int64_t channels = 2;
  DataType cache_type = DataType::kFloat32;
  float epsilon = 1e-6f;
  WeightForm form = {};
};

Geometry GeometryOf(const Variant& v) {
  return {.name = "small",
          .hidden = 512,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = 64,
          .rotary_dim = v.rotary_dim,
          .intermediate = 1024,
          .layers = 2,
          .norms = v.gemma ? 4 : 2,
          .head_norms = v.gemma,
          .activation = v.gemma ? Activation::kGeluTanh : Activation::kSilu,
          .head_rows = 512,
          .head_chunks = 2,
          .group = v.group};
}

Family FamilyOf(const Variant& v) {
  return {.name = v.name,
          .packed = !v.separate,
          .qk_norm = v.gemma,
          .norms_behind = v.gemma,
          .gelu = v.gemma,
          .rotary_dim = v.rotary_dim,
          .window = v.gemma ? kWindow : 0,
          .kv_heads = 4,
          .windowed = v.gemma,
          .hidden = 512,
          .intermediate = 1024,
          .vocabulary = kVocabulary,
          .heads = 8,
          .capacity = kCapacity,
          .cache_type = v.cache_type,
          .in_place = v.in_place,
          .scaled = false,
          .epsilon = v.epsilon};
}

// A decoder and its user.
struct Model {
  explicit Model(const Variant& variant)
      : v(variant), g(GeometryOf(v)), decoder(FamilyOf(v), g.layers, v.form, v.form) {
    for (Generator& cache : user.caches) {
      for (Values* rows : {&cache.keys, &cache.values}) {
        *rows = Values(v.cache_type, Exact(static_cast<int64_t>(rows->floats().size()), 0.0625f));
      }
    }
    Follow(kPast);
  }

  // The next token is after `past` others.
  void Follow(int64_t past) {
    for (Generator& cache : user.caches) cache.past = {past};
  }
  Plan Token() { return user.Token(user.caches[0].past[0]); }

  const Variant v;
  const Geometry g;
  WholeDecoder::Model decoder;
  WholeDecoder user{decoder, true};
};

struct Fused {
  // `packages`: the windows of each.
  explicit Fused(const Variant& v,
                 const std::vector<std::vector<int64_t>>& packages = {{kCapacity}},
                 ExecutorOptions options = {}) {
    device = std::make_shared<FusedDevice>(GeometryOf(v), v.channels);
    for (const std::vector<int64_t>& windows : packages) {
      options.fused_decode.push_back(PackageOf(v, windows));
    }
    options.report = [this](const std::string& line) { lines.push_back(line); };
    target = MakeXrtTarget(device, options);
  }

  fused_decode::Package PackageOf(const Variant& v, const std::vector<int64_t>& windows) const {
    const Geometry geometry = GeometryOf(v);
    fused_decode::Package package{
        .geometry = geometry,
        .device = "npu2",
        .channels = v.channels == 2 ? fused_decode::Channels::kTwo : fused_decode::Channels::kOne,
        .any_epsilon = false,
        .windows = {}};
    for (const int64_t positions : windows) {
      const std::string path = std::to_string(positions);
      device->windows[path] = positions;
      // Words for a context that is one token shorter than the window's capacity.
      const auto row = static_cast<uint32_t>(2 * geometry.region_width());
      fused_decode::WordTemplate words{
          .words = std::vector<uint32_t>(10, 77),
          .slopes = {{FusedDevice::kLengthWord, 1}, {FusedDevice::kRowWord, row}},
          .base_length = positions - 1,
          .positions = positions};
      words.words[FusedDevice::kLengthWord] = static_cast<uint32_t>(positions - 1);
      words.words[FusedDevice::kRowWord] = 1000 + static_cast<uint32_t>(positions - 2) * row;
      package.windows.push_back({.positions = positions,
                                 .overlay = path,
                                 .uuid = "",
                                 .kernel = "MLIR_AIE",
                                 .words = std::move(words)});
    }
    return package;
  }

  void Run(const Plan& plan) const { target->Execute(plan, kThreads); }

  std::vector<std::string> lines;
  std::shared_ptr<FusedDevice> device;
  std::unique_ptr<XrtTarget> target;
};

// Host and overlay differ only in roundings. Both round activations of projections to bfloat16; the
// overlay also rounds norms, tables, rows of the cache, x and logits. Each rounding moves a value
// by 0.42 * 2^-8 in the root of the mean of squares (docs/architecture.md, Numerics). There are at
// most 18 a layer and 5 besides, and all of them reach the logits at about their size.
void Close(const Model& model, const char* what, const Values& got, const Values& want,
           int64_t width) {
  const double roundings = 18.0 * static_cast<double>(model.g.layers) + 5;
  const double bound = std::sqrt(roundings) * 0.42 * kUnit * 2;  // twice the expected error
  Near(Concat(model.v.name, ": ", what).c_str(), got, want, width, bound);
}

// The model's next token, on the overlay and on the host.
void CheckToken(const Fused& fused, Model& model) {
  WholeDecoder &user = model.user, host = user;
  const int64_t id = user.caches[0].past[0], tokens = fused.target->counters().fused_tokens;
  HostTarget().Execute(host.Token(id), kThreads);
  fused.Run(user.Token(id));
  Check(fused.target->counters().fused_tokens == tokens + 1, model.v.name, ": not in one dispatch");
  Close(model, "logits", user.logits, host.logits, kVocabulary);
  for (size_t l = 0; l < user.caches.size(); ++l) {
    for (const bool values : {false, true}) {
      if (model.v.cache_type == DataType::kFloat16) continue;  // rounds small values otherwise
      Close(model, values ? "values" : "keys", user.Present(l, values), host.Present(l, values),
            model.g.head_dim);
    }
  }
  user.Advance();
}

const std::vector<Variant> kVariants = {
    {.name = "packed"},
    {.name = "one channel", .channels = 1},
    {.name = "separate, of another present", .separate = true, .in_place = false},
    {.name = "a part of heads is rotated", .rotary_dim = 32},
    {.name = "weights in several buffers", .group = 1},
    {.name = "gemma", .gemma = true, .separate = true},
    {.name = "gemma, of another present", .gemma = true, .in_place = false},
    {.name = "caches of bfloat16", .cache_type = DataType::kBfloat16},
    {.name = "a form that is widened", .form = {WeightKind::kQ4NX, 128, false}},
};

void ATokenIsOneDispatch() {
  for (const Variant& variant : kVariants) {
    Model model(variant);
    const Fused fused(variant);
    for (int64_t token = 0; token < 3; ++token) CheckToken(fused, model);
    const ExecutorCounters counters = fused.target->counters();
    Check(fused.device->runs.size() == 3, "there were ", fused.device->runs.size(), " runs");
    // Rows of the past are sent once: the device already has those of tokens.
    const int64_t heads = 2 * model.g.layers * model.g.kv_heads;
    Check(counters.cache_rows_sent == heads * kPast, variant.name, ": ", counters.cache_rows_sent,
          " rows were sent");
    Check(counters.host_steps == std::map<std::string, int64_t>{{"rows of an embedding", 3}},
          "the host did more than the embedding");
    Check(fused.lines.empty(), "a line was reported");
    // Two layers of five matrices, and the head.
    const bool same = variant.form == q4nx::kShipping;
    Check(counters.widened.size() == (same ? 0 : 1) &&
              (same || counters.widened.begin()->second == 2 * 5 + 1),
          variant.name, ": widened");
  }
}

void RowsOfAnotherUserAreSent() {
  Model model(kVariants[0]);
  const Fused fused(kVariants[0]);
  CheckToken(fused, model);
  const int64_t sent = fused.target->counters().cache_rows_sent;
  model.user.caches[1].values =
      Values(DataType::kFloat32, Exact(model.g.kv_heads * kCapacity * 64, 0.0625f));
  CheckToken(fused, model);
  // The values of a layer, for its four heads.
  Check(fused.target->counters().cache_rows_sent == sent + 4 * (kPast + 1), "other rows were sent");
}

void ALongerContextTakesTheNextWindow() {
  Model model(kVariants[0]);
  const Fused fused(kVariants[0], {{16, 48}});
  model.Follow(14);
  for (int64_t token = 0; token < 4; ++token) CheckToken(fused, model);
  Check(fused.device->runs == std::vector<std::string>{"16", "16", "48", "48"},
        "other windows were taken");
  Check(fused.device->alive->most_streams == 1, "a window's context outlived its use");
}

void PackagesOfOneModelFollowEachOther() {
  Model model(kVariants[0]);
  const Fused fused(kVariants[0], {{16}, {48}});
  model.Follow(14);
  for (int64_t token = 0; token < 4; ++token) CheckToken(fused, model);
  model.Follow(5);
  CheckToken(fused, model);
  Check(fused.device->runs == std::vector<std::string>{"16", "16", "48", "48", "16"},
        "other packages were taken");
  Check(fused.lines.empty() && fused.target->counters().fused_refused.empty(),
        "a token that another package took counts as refused");
}

void AContextBeyondAllPackagesIsSaidOnce() {
  Model model(kVariants[0]);
  const Fused fused(kVariants[0], {{16}, {16}});
  model.Follow(15);
  CheckToken(fused, model);
  for (int64_t token = 0; token < 3; ++token) {
    fused.Run(model.Token());
    model.user.Advance();
  }
  const std::string reason = "small: the context is longer than the overlay's 16 tokens";
  Check(fused.target->counters().fused_refused == std::map<std::string, int64_t>{{reason, 3}},
        "another reason was counted");
  Check(fused.lines == std::vector<std::string>{"NPU of a test: the fused decode of " + reason},
        "the reason was not said once");
}

// Rows that the cache's type cannot hold are sent again with the host's values.
void RowsThatFloat16RoundsAreTheHosts() {
  Variant variant{.name = "caches of float16"};
  variant.cache_type = DataType::kFloat16;
  Model model(variant);
  const Fused fused(variant);
  // Rows from 768 on are values: scaled down by 2^20, below the normal numbers of float16.
  auto* const blocks = reinterpret_cast<uint16_t*>(model.decoder.layers[0].qkv[0].blocks.data());
  for (int64_t block = 24 * 2; block < 32 * 2; ++block) {
    for (int64_t i = 0; i < 512; ++i) {  // scales, then minima
      uint16_t& bits = blocks[block * 2560 + i];
      bits = static_cast<uint16_t>(bits - (bits == 0 ? 0 : 20 << 7));
    }
  }
  for (int64_t token = 0; token < 2; ++token) CheckToken(fused, model);
  const int64_t rows = 2 * model.g.layers * model.g.kv_heads;
  Check(fused.target->counters().cache_rows_sent > rows * kPast, "no row was sent again");
}

struct Refused {
  const char* reason;
  std::function<void(Model&, Plan&)> change;
  Variant variant = {.name = "refused"};
};

template <typename S>
S& StepOf(Plan& plan, size_t which) {
  for (Step& step : plan.steps) {
    if (S* const found = std::get_if<S>(&step); found != nullptr && which-- == 0) return *found;
  }
  throw std::logic_error("there is no such step");
}

void WhatDoesNotFitIsTheHosts() {
  static const std::vector<float> bias(1024, 0.5f);
  const std::vector<Refused> all = {
      {"its norms have eps 1e-05, but the overlay's have 1e-06 (package-overlay --any-epsilon "
       "accepts that)",
       [](Model&, Plan&) {},
       {.name = "eps", .epsilon = 1e-5f}},
      {"the context is longer than the overlay's 48 tokens",
       [](Model&, Plan& plan) {
         for (auto* attention :
              {&StepOf<AttentionStep>(plan, 0), &StepOf<AttentionStep>(plan, 1)}) {
           attention->past_length = {48};
           attention->total_length = {49};
         }
       }},
      {"the context is longer than a window of 40 tokens, which the overlay does not have",
       [](Model& model, Plan& plan) {
         model.Follow(40);
         plan = model.Token();
       },
       {.name = "window", .gemma = true}},
      {"there is a bias for queries, keys and values",
       [](Model&, Plan& plan) { StepOf<MatMulStep>(plan, 0).bias = bias.data(); }},
      {"the weights of attention's output do not have 4 bits",
       [](Model&, Plan& plan) { StepOf<MatMulStep>(plan, 1).form = {WeightKind::kBf16}; }},
      {"the MLP has a different activation",
       [](Model&, Plan& plan) { StepOf<MatMulStep>(plan, 2).activation = Activation::kGeluTanh; }},
      {"attention has the scale 0.25, but the overlay's is 1 / sqrt(64)",
       [](Model&, Plan& plan) { StepOf<AttentionStep>(plan, 0).scale = 0.25f; }},
      {"attention rotates neighbouring channels",
       [](Model&, Plan& plan) { StepOf<AttentionStep>(plan, 1).rotary_interleaved = true; }},
      {"attention has a soft cap, a bias or a sink",
       [](Model&, Plan& plan) { StepOf<AttentionStep>(plan, 0).softcap = 50; }},
      {"keys of the context are hidden",
       [](Model&, Plan& plan) { StepOf<AttentionStep>(plan, 0).visible_keys = {{2, 6}}; }},
      {"the model gives more than logits",
       [](Model& model, Plan& plan) { plan.temporaries = {model.user.logits.bytes.data(), 1}; }},
      {"its vocabulary has 400 entries, which does not fit the overlay's 1024",
       [](Model&, Plan& plan) { StepOf<MatMulStep>(plan, 8).n = 400; }},
      {"it is not the decoder of the overlay: step 12 follows the projection to the vocabulary",
       [](Model&, Plan& plan) { plan.steps.push_back(plan.steps.back()); }},
      {"the model has fewer than 2 layers",
       [](Model&, Plan& plan) {
         auto head = std::get<MatMulStep>(plan.steps.back());
         plan.steps.resize(6);
         head.a = StepOf<MatMulStep>(plan, 2).sum;
         head.skip = StepOf<MatMulStep>(plan, 3).y;
         plan.steps.push_back(head);
       }},
  };
  for (const Refused& refused : all) {
    Model model(refused.variant);
    const Fused fused(refused.variant);
    Plan plan = model.Token();
    refused.change(model, plan);
    fused_decode::DecoderPlan decoder;
    const std::string reason = fused_decode::WhyNot(plan, model.g, kCapacity, false, decoder);
    Check(reason.starts_with(refused.reason), "the reason is: ", reason,
          "; expected: ", refused.reason);
  }
  // The host takes over. The reason is counted, and reported once.
  Model model(all[0].variant);
  const Fused fused(all[0].variant);
  fused.Run(model.Token());
  const std::vector<float> got = model.user.logits.floats();
  fused.Run(model.Token());
  const std::string counted = std::string("small: ") + all[0].reason;
  Check(fused.target->counters().fused_refused == std::map<std::string, int64_t>{{counted, 2}},
        "the reason was not counted");
  Check(fused.lines == std::vector<std::string>{"NPU of a test: the fused decode of " + counted},
        "the reason was not said once");
  Check(fused.device->runs.empty(), "there was a run");
  HostTarget().Execute(model.Token(), kThreads);
  Check(got == model.user.logits.floats(), "the logits are not the host's");
}

void AFaultIsCured() {
  Model model(kVariants[0]);
  const Fused fused(kVariants[0]);
  CheckToken(fused, model);
  int64_t runs = 0;
  fused.device->before_run = [&runs] {
    if (++runs == 1) throw DeviceError(Fault::kTimeout, "a timeout");
  };
  CheckToken(fused, model);
  Check(fused.target->counters().retries == 1 && fused.device->resets == 1, "no fresh context");
  Check(fused.target->device_in_use(), "the device was given up");
}

void AFaultThatStaysEndsTheUse() {
  Model model(kVariants[0]);
  Fused fused(kVariants[0]);
  fused.device->before_run = [] { throw DeviceError(Fault::kTimeout, "a timeout"); };
  fused.Run(model.Token());
  Check(fused.device->alive->buffers == 0, fused.device->alive->buffers, " buffers are kept");
  const std::vector<float> got = model.user.logits.floats();
  fused.Run(model.Token());
  const ExecutorCounters counters = fused.target->counters();
  Check(counters.fused_tokens == 0 && counters.retries == 1 && counters.fallbacks == 1,
        "it was tried again");
  Check(fused.lines.size() == 1 && fused.lines[0].find("a timeout") != std::string::npos,
        "the fault was not said once");
  HostTarget().Execute(model.Token(), kThreads);
  Check(got == model.user.logits.floats(), "the logits are not the host's");

  const Fused strict(kVariants[0], {{kCapacity}}, {.raise_on_error = true, .report = {}});
  strict.device->before_run = [] { throw DeviceError(Fault::kTimeout, "a timeout"); };
  try {
    strict.Run(model.Token());
  } catch (const Error& error) {
    Check(std::string(error.what()).find("a fresh context did not help") != std::string::npos,
          error.what());
    Check(strict.device->alive->buffers == 0, strict.device->alive->buffers, " buffers are kept");
    return;
  }
  Check(false, "no error");
}

const Cases kFusedDecodeCases({
    {"one_dispatch_on_what_the_overlay_reads", ATokenIsOneDispatch},
    {"fused_rows_of_another_user_are_sent", RowsOfAnotherUserAreSent},
    {"a_longer_context_takes_the_next_window", ALongerContextTakesTheNextWindow},
    {"packages_of_one_fused_model", PackagesOfOneModelFollowEachOther},
    {"a_context_beyond_fused_packages", AContextBeyondAllPackagesIsSaidOnce},
    {"fused_rows_that_float16_rounds", RowsThatFloat16RoundsAreTheHosts},
    {"what_an_overlay_cannot_is_the_hosts", WhatDoesNotFitIsTheHosts},
    {"a_fault_of_an_overlay_is_cured", AFaultIsCured},
    {"a_fault_ends_the_use_of_an_overlay", AFaultThatStaysEndsTheUse},
});

}  // namespace
}  // namespace ort_aie::npu_target
