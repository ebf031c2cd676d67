// Plans of several steps: what is one submission, and what divides it.
#include <functional>
#include <map>

#include "decoder.h"
#include "projected.h"
#include "targets/npu/kv_copies.h"
#include "targets/npu/schedule/reasons.h"

namespace ort_aie::npu_target {
namespace {

const Layer kRotary{.rotary = true};

// Attention of well-known models, at full size; heads that the device has not; other types; several
// batch rows.
void TokensPreparedOnTheDevice() {
  const std::vector<Layer> layers = {
      // Llama-3.2-1B, Qwen3-4B, Gemma-3-1B and 4B, Phi-3-mini, Phi-4-mini, Mistral-7B.
      {.heads = 32, .kv_heads = 8, .rotary = true},
      {.heads = 32, .kv_heads = 8, .dim = 128, .rotary = true, .qk_norm = true},
      {.heads = 4,
       .kv_heads = 1,
       .dim = 256,
       .window = 512,
       .rotary = true,
       .qk_norm = true,
       .windowed_cache = true},
      {.heads = 8, .kv_heads = 4, .dim = 256, .rotary = true, .qk_norm = true},
      {.heads = 32, .kv_heads = 32, .dim = 96, .window = 2047, .rotary = true},
      {.heads = 24, .kv_heads = 8, .dim = 128, .rotary = true, .rotary_dim = 96},
      {.heads = 32, .kv_heads = 8, .dim = 128, .window = 4096, .rotary = true},
      // Not rotated at all.
      {.heads = 32, .kv_heads = 16, .dim = 80},
      {},
      {.qk_norm = true},
      {.window = 3},
      // Rows that do not fill whole objects of the device; norms of heads with zeros behind them.
      {.heads = 8, .kv_heads = 2, .dim = 32, .rotary = true},
      {.heads = 6, .kv_heads = 3, .dim = 40, .qk_norm = true},
      {.heads = 6, .kv_heads = 3, .dim = 96, .rotary = true, .qk_norm = true},
      {.heads = 12, .kv_heads = 3, .rotary = true},
      {.heads = 20, .kv_heads = 5, .rotary = true},
      {.type = DataType::kFloat16, .cache_type = DataType::kFloat16, .rotary = true},
      {.type = DataType::kBfloat16, .rotary = true},
      {.cache_type = DataType::kFloat32, .rotary = true},
      {.rotary = true, .interleaved = true},
      {.rotary = true, .rotary_dim = 32},
      {.batch = 3, .rotary = true, .qk_norm = true},
      {.batch = 3, .rotary = true, .qk_norm = true, .v_norm = true},
      {.batch = 3, .v_norm = true},
      {.batch = 3, .heads = 6, .kv_heads = 3, .dim = 40, .v_norm = true},
      {.batch = 3},
      {.batch = 3, .rotary = true, .padding = {0, 3, 7}},
      {.batch = 3, .window = 8, .rotary = true, .windowed_cache = true}};
  for (const Layer& layer : layers) {
    for (const bool in_place : {false, true}) {
      Bench bench;
      const int64_t capacity = layer.batch > 1 && layer.windowed_cache ? 10
                               : in_place || layer.windowed_cache      ? 600
                                                                       : 0;
      // Of small heads, epsilon is a part of the norm.
      const bool small = layer.qk_norm && PaddedHeadDim(layer.dim) != layer.dim;
      ProjectedAttention attention(layer, capacity, in_place, small ? 0x1p-12f : 0.125f);
      Generator& generator = attention.generator;
      const int64_t heads = 2 * layer.batch * layer.kv_heads;
      const auto sent = [&] { return bench.target->counters().cache_rows_sent; };
      if (layer.batch > 1) {  // after prompts of different lengths
        generator.Append(*bench.target, 9, {9, 8, layer.padding.empty() ? 1 : 9});
      }
      const int64_t before = sent();
      // More than a group of eight keys, but where a head is wide.
      for (int token = 0; token < (layer.heads * layer.dim > 1280 ? 3 : 11); ++token) {
        Check(attention.Append(bench, 1) == 1, "heads of ", layer.dim);
      }
      const int64_t moved = layer.windowed_cache && layer.batch > 1 ? heads * 11 : 0;
      Check(sent() - before <= moved, "the device appends, but ", sent() - before, " were sent");
      if (layer.batch == 1 && !layer.windowed_cache) {
        // A separate op's prompt and token continue with that copy, and so does a rewind.
        for (const int64_t tokens : {5, 1}) {
          const int64_t so_far = sent();
          generator.Append(*bench.target, tokens);
          Check(sent() - so_far == tokens * heads, "its own rows, got ", sent() - so_far);
        }
        if (in_place) {
          generator.past[0] -= 4;
          Check(attention.Append(bench, 1) == 1, "one submission after a rewind");
        }
      }
      bench.OnlyDevice();
    }
  }
}

void PromptsPreparedOnTheDevice() {
  for (const Layer& layer : std::vector<Layer>{
           {},
           kRotary,
           {.rotary = true, .qk_norm = true, .v_norm = true},
           {.heads = 2, .kv_heads = 1, .dim = 256, .rotary = true, .interleaved = true},
           {.type = DataType::kFloat16,
            .cache_type = DataType::kFloat16,
            .rotary = true,
            .rotary_dim = 32},
           {.window = 70, .rotary = true},
           {.heads = 3, .kv_heads = 3, .dim = 128},
           {.window = 40, .rotary = true, .windowed_cache = true}}) {
    for (const bool in_place : {false, true}) {
      for (const int64_t tokens : {64, 101}) {
        Bench bench;
        const int64_t capacity = layer.windowed_cache ? 50 : in_place ? 400 : 0;
        ProjectedAttention attention(layer, capacity, in_place);
        // A token continues with what the device has, and a prompt after a multiple of 8.
        for (const int64_t count : {tokens, int64_t{72}, int64_t{1}}) {
          if (count == 72 && (tokens % 8 != 0 || layer.windowed_cache)) continue;
          Check(attention.Append(bench, count) == 1, count, " tokens are one submission");
          Check(bench.target->counters().cache_rows_sent == 0, "the device appends");
        }
        const auto appended = std::ranges::count(bench.device->sequences, "append_rows");
        Check(appended % 2 == 0 && appended > 0, "keys and values, got ", appended);
        Check(bench.lines.empty(), "reported: ", bench.lines.empty() ? "" : bench.lines[0]);
      }
    }
  }
}

// What the overlays cannot do with heads, the host does between two submissions.
void AttentionThatTheHostPrepares() {
  struct Case {
    Layer layer;
    int64_t before, tokens;
    Reason reason;
  };
  const Layer norm_behind{.rotary = true, .qk_norm = true, .norm_after_rotary = true};
  for (const Case& c :
       {Case{{.rotary = true, .sinks = true}, 0, 1, Reason::kHeadSink},
        {{.dim = 80, .rotary = true}, 0, 1, Reason::kHostPrepares},
        {{.cache_type = DataType::kInt8, .rotary = true}, 0, 1, Reason::kHostPrepares},
        {{.rotary = true, .rotary_dim = 16}, 0, 1, Reason::kHostPrepares},
        {{.rotary = true, .k_norm = true, .norm_after_rotary = true}, 0, 1, Reason::kHostPrepares},
        {kRotary, 0, 63, Reason::kFewKeys},
        {kRotary, 3, 64, Reason::kUnalignedKeys},
        {{.dim = 80}, 0, 64, Reason::kOtherHeads},
        {{.rotary = true, .mixed_positions = true}, 0, 64, Reason::kHostPrepares},
        {norm_behind, 0, 64, Reason::kHostPrepares}}) {
    Bench bench;
    ProjectedAttention attention(c.layer, 400, true);
    if (c.before > 0) attention.generator.Append(*bench.target, c.before);
    const bool by_host = c.layer.sinks;
    Check(attention.Append(bench, c.tokens) == (by_host ? 1 : 2), "the host between submissions");
    const ExecutorCounters counters = bench.target->counters();
    const auto& reasons = by_host ? counters.host_steps : counters.host_steps_between;
    Check(reasons == std::map<std::string, int64_t>{{Words(c.reason), 1}}, "the reason is ",
          reasons.empty() ? "none" : reasons.begin()->first);
    if (c.tokens > 1) continue;
    for (int token = 0; token < 2; ++token) attention.Append(bench, 1);
    const int64_t sent = by_host ? 0 : 3 * 2 * c.layer.kv_heads;
    Check(bench.target->counters().cache_rows_sent == sent, "the host's rows");
  }
}

// float16 cannot hold small bfloat16 values: the present has other values, which the device then
// gets.
void RowsThatTheCacheRounds() {
  const Layer layer{.cache_type = DataType::kFloat16};
  Bench bench;
  ProjectedAttention attention(layer, 64, true, 0x1p-30f);
  for (int64_t token = 0; token < 10; ++token) {
    Check(attention.Append(bench, 1, false) == 1, "one submission");
    const int64_t sent = bench.target->counters().cache_rows_sent;
    Check(sent == token * 4, "each new row of two heads once, with the next token; got ", sent);
  }
  bench.OnlyDevice();
}

// A windowed cache that is in place is the input of a second attempt, so a failed one must not
// change it.
void AFaultWithACacheOfAWindow() {
  const Layer layer{.window = 6, .rotary = true, .windowed_cache = true};
  for (const bool forever : {false, true}) {
    Bench bench;
    ProjectedAttention attention(layer, 7, true);
    bool faulty = false;
    bench.device->before_run = [&](int64_t) {
      if (!faulty) return;
      faulty = forever;
      throw DeviceError(Fault::kTimeout, "a run took more than 2.5 s");
    };
    for (int token = 0; token < 20; ++token) {
      faulty = faulty || token == 12;
      attention.Append(bench, 1);
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

// All caches of a program's layers share one buffer, whatever their shapes, and grow together, with
// the bits of steps whose caches are their own.
void CachesOfAProgramAreOneBuffer() {
  const WholeDecoder::Model model(
      {.name = "windows", .qk_norm = true, .window = 10, .every = 3, .windowed = true}, 3);
  Bench bench, other;
  WholeDecoder device(model, true), steps(model, false);
  int64_t id = 0, buffers = 0;
  const auto token = [&] {
    const int64_t before = bench.target->counters().cache_rows_sent;
    bench.Run(device.Token(++id % 320));
    other.Run(steps.Token(id % 320));
    Check(device.logits.bytes == steps.logits.bytes, "other logits of token ", id);
    device.Advance();
    steps.Advance();
    buffers = bench.device->counters().buffers;
    return bench.target->counters().cache_rows_sent - before;
  };
  token();
  Check(buffers == 3, "one of weights, one of caches, one of rows, got ", buffers);
  for (int i = 1; i < 256; ++i) Check(token() == 0, "the device appends");
  const int64_t sent = token();  // all layers move to a larger buffer
  const int64_t layer = 2 * 2 * 256;
  Check(sent > layer - 4 && sent <= layer + 2 * 4 * 14, "all rows once, got ", sent);
  Check(buffers == 3, "as before, got ", buffers);
  Check(token() == 0, "and no more");
  // A generator that changes a row of one layer sends that layer: a row of the second head.
  for (WholeDecoder* user : {&device, &steps}) {
    user->caches[2].keys.bytes[(640 + 200) * 64 * 2 + 1] ^= 0x80;
  }
  Check(token() == 2 * 2 * 258, "the layer's rows");
}

// Another thread's fault renews the engine while a batch is put together: the batch's caches stay
// alive until it is done. (The test's environment overwrites freed memory.)
class Interrupting final : public ThreadPool {
 public:
  Interrupting(int64_t calls, std::function<void()> act) : calls_(calls), act_(std::move(act)) {}

 protected:
  void Run(int64_t count, Call call, void* job) const override {
    if (calls_-- == 0) act_();
    for (int64_t i = 0; i < count; ++i) call(job, i);
  }

 private:
  mutable int64_t calls_;
  const std::function<void()> act_;
};

void AFaultElsewhereWhileABatchIsMade() {
  const WholeDecoder::Model model({.name = "three layers"}, 3);
  for (int64_t call = 0; call < 6; ++call) {
    Bench bench;
    WholeDecoder device(model, true), host(model, true);
    Projection other({});
    const auto want = other.OnHost();
    const auto fail_elsewhere = [&] {
      bool faulty = true;
      bench.device->before_run = [&](int64_t) {
        if (std::exchange(faulty, false)) throw DeviceError(Fault::kTimeout, "another's");
      };
      bench.Run({other.Step()});
      bench.device->before_run = nullptr;
      other.Compare(want);
    };
    for (int token = 0; token < 4; ++token) {
      const Interrupting threads(token == 2 ? call : -1, fail_elsewhere);
      bench.target->Execute(device.Token(token), threads);
      HostTarget().Execute(host.Token(token), kThreads);
      Close(device.logits, host.logits, Bound(3));
      device.Advance();
      host.Advance();
    }
    Check(bench.target->counters().retries == 1, "only another's fault, got ",
          bench.target->counters().retries);
    // The next token cannot use those caches, so it sends all rows. Later tokens send none.
    const int64_t sent = bench.target->counters().cache_rows_sent;
    Check(sent == 3 * 3 * 4, "rows sent: ", sent);
  }
}

// Two projections share a row; only the second says where its sum goes.
void ASumThatALaterProjectionGives() {
  for (const bool later : {false, true}) {
    Bench bench;
    Projection a({.k = 256, .n = 256}), b({.k = 256, .n = 256});
    const ProjectionCase c{.k = 256, .n = 128, .norm = true, .skip = true};
    Projection one(c), two(c);
    two.norm = one.norm;
    Plan plan = {a.Step(), b.Step()};
    for (Projection* projection : {&one, &two}) {
      MatMulStep step = projection->Step();
      step.a = a.y.data();
      step.skip = b.y.data();
      step.norm_weight = one.norm.data();
      const bool gives = (projection == &two) == later;
      step.sum = gives ? two.sum.data() : nullptr;
      plan.steps.push_back(step);
    }
    bench.Run(plan);
    Check(bench.device->counters().submissions == 1, "one submission");
    for (Projection* projection : {&one, &two}) {
      projection->a = a.y;
      projection->skip = b.y;
      projection->norm = one.norm;
      projection->sum = two.sum;
      projection->CompareRounded(projection->OnHost());
    }
    bench.OnlyDevice();
  }
}

// The host makes a rotary table from the device's results: attention waits for it.
void ATableThatThePlanMakes() {
  const Layer layer = kRotary;
  Bench bench;
  Generator generator(layer, 16);
  generator.past = {0};
  Projection table({.k = 256, .n = 32}), qkv({.k = 256, .n = 512});
  Values cosines(DataType::kFloat32, 32), output(DataType::kFloat32, 256),
      want = output, keys = generator.keys, values = generator.values;
  AttentionStep step = generator.Step(1, {});
  step.cos = cosines.data();
  step.query = qkv.y.data();
  step.key = Advance(qkv.y.data(), layer.type, 256);
  step.value = Advance(qkv.y.data(), layer.type, 384);
  step.past_key = step.present_key = generator.keys.data();
  step.past_value = step.present_value = generator.values.data();
  step.output = output.data();
  bench.Run({table.Step(),
             ElementwiseStep{Function::kSigmoid, 1, 32, table.y.data(), nullptr,
                             ElementwiseStep::Operand::kTensor, cosines.data(), DataType::kFloat32},
             qkv.Step(), step});
  step.past_key = step.present_key = keys.data();
  step.past_value = step.present_value = values.data();
  step.output = want.data();
  HostTarget().Execute({step}, kThreads);
  Near("output", output, want, step.dim);
  const std::map<std::string, int64_t> reasons = {
      {"an activation that the overlay does not have", 1}};
  Check(bench.target->counters().host_steps_between == reasons, "another reason");
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
    std::map<std::string, int64_t> between;
    if (!inside) between = {{Words(Reason::kHostHasInput), 1}};
    Check(bench.target->counters().host_steps_between == between, "refused at element ", element);
    const std::vector<float> y = wide.y.floats();
    half.a = Values(DataType::kFloat32, {y.begin() + element, y.begin() + element + 256});
    half.Compare(half.OnHost());
    bench.OnlyDevice();
  }
}

const Cases kPlansCases({
    {"tokens_prepared_on_the_device", TokensPreparedOnTheDevice},
    {"prompts_prepared_on_the_device", PromptsPreparedOnTheDevice},
    {"attention_that_the_host_prepares", AttentionThatTheHostPrepares},
    {"rows_that_the_cache_rounds", RowsThatTheCacheRounds},
    {"a_fault_with_a_cache_of_a_window", AFaultWithACacheOfAWindow},
    {"a_fault_beside_a_cache_of_a_window", AFaultBesideACacheOfAWindow},
    {"caches_of_a_program_are_one_buffer", CachesOfAProgramAreOneBuffer},
    {"a_fault_elsewhere_while_a_batch_is_made", AFaultElsewhereWhileABatchIsMade},
    {"a_sum_that_a_later_projection_gives", ASumThatALaterProjectionGives},
    {"a_table_that_the_plan_makes", ATableThatThePlanMakes},
    {"parts_of_tensors_are_found", PartsOfTensorsAreFound},
});

}  // namespace
}  // namespace ort_aie::npu_target
