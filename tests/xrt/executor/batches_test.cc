// What a batch assumes about tensors and the device while it is put together.
#include <functional>
#include <utility>

#include "layer.h"

namespace ort_aie::npu_target {
namespace {

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
  const LayerShape first{}, next{.skip = true};
  for (int64_t call = 0; call < 6; ++call) {
    Bench bench;
    TestedLayer a(first, 64), b(next, 64), c(next, 64);
    Projection other({});
    const auto want = other.OnHost();
    const auto kept = std::make_shared<KeptState>();
    const auto fail_elsewhere = [&] {
      bool faulty = true;
      bench.device->before_run = [&](int64_t) {
        if (std::exchange(faulty, false)) throw DeviceError(Fault::kTimeout, "another's");
      };
      bench.Run({other.Step()});
      bench.device->before_run = nullptr;
      other.Compare(want);
    };
    const InlineThreadPool inline_threads;
    for (int token = 0; token < 4; ++token) {
      const Values x(DataType::kFloat32, Exact(first.hidden));
      Plan plan = a.Steps(x);
      for (const Step& step : b.Steps(a.down.y, &a.mlp.sum).steps) plan.steps.push_back(step);
      for (const Step& step : c.Steps(b.down.y, &b.mlp.sum).steps) plan.steps.push_back(step);
      plan.kept = kept;
      const Interrupting threads(token == 2 ? call : -1, fail_elsewhere);
      bench.target->Execute(plan, threads);
      for (TestedLayer* layer : {&a, &b, &c}) layer->Compare();
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
  const LayerShape shape{.attention = {.rotary = true}};
  Bench bench;
  TestedLayer decoder(shape, 16);
  Projection table({.k = 256, .n = shape.attention.dim / 2});
  Values cosines(DataType::kFloat32, shape.attention.dim / 2);
  const Values x(DataType::kFloat32, Exact(shape.hidden));
  Plan plan = {table.Step()};
  plan.steps.push_back(ElementwiseStep{Function::kSigmoid, 1, shape.attention.dim / 2,
                                       table.y.data(), nullptr, ElementwiseStep::Operand::kTensor,
                                       cosines.data(), DataType::kFloat32});
  const Plan layer = decoder.Steps(x);
  Values q_k_v, output, keys = decoder.generator.keys, values = decoder.generator.values;
  AttentionStep attention{};
  for (Step step : layer.steps) {
    if (auto* found = std::get_if<AttentionStep>(&step)) {
      found->cos = cosines.data();
      attention = *found;
    }
    plan.steps.push_back(step);
    if (attention.query != nullptr) break;
  }
  bench.Run(plan);
  output = Values(DataType::kFloat32, shape.attention.heads * shape.attention.dim);
  attention.past_key = attention.present_key = keys.data();
  attention.past_value = attention.present_value = values.data();
  attention.output = output.data();
  HostTarget().Execute({attention}, kThreads);
  Near("output", decoder.output, output, AttentionBounds(attention, Roundings(2), Roundings(3)));
  const auto reasons = bench.target->counters().host_steps_between;
  Check(reasons ==
            std::map<std::string, int64_t>{{"an activation that the overlay does not have", 1}},
        "the reason of ", reasons.size());
}

const Cases kBatchesCases({
    {"a_fault_elsewhere_while_a_batch_is_made", AFaultElsewhereWhileABatchIsMade},
    {"a_sum_that_a_later_projection_gives", ASumThatALaterProjectionGives},
    {"a_table_that_the_plan_makes", ATableThatThePlanMakes},
});

}  // namespace
}  // namespace ort_aie::npu_target
