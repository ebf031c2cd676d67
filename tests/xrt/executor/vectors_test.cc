// The operators between projections, and steps that the host does among the device's.
#include <cmath>
#include <map>
#include <vector>

#include "projection.h"

namespace ort_aie::npu_target {
namespace {

using Operand = ElementwiseStep::Operand;

// A row that a projection leaves on the device, and steps that begin with it.
class Chain {
 public:
  Chain(int64_t k, DataType type) : k_(k), type_(type), first_({.k = 256, .n = k, .type = type}) {
    steps.push_back(first_.Step());
  }

  const Values& x() const { return first_.y; }
  Values Tensor() const { return Values(type_, Exact(k_)); }

  NormStep Norm(const Values& a, const Values* skip, const Values& weight, Values& y, Values* sum) {
    y = Values(type_, k_);
    if (sum != nullptr) *sum = y;
    return {1,
            k_,
            a.data(),
            skip == nullptr ? nullptr : skip->data(),
            weight.data(),
            y.data(),
            sum == nullptr ? nullptr : sum->data(),
            type_,
            1e-6f};
  }
  ElementwiseStep Apply(Function function, const Values& a, const Values* b, Operand operand,
                        Values& y) {
    y = Values(type_, k_);
    return {function, 1,        k_,   a.data(), b == nullptr ? nullptr : b->data(),
            operand,  y.data(), type_};
  }

  std::vector<Step> steps;

 private:
  const int64_t k_;
  const DataType type_;
  Projection first_;
};

Plan PlanOf(const std::vector<Step>& steps) {
  Plan plan;
  for (const Step& step : steps) plan.steps.push_back(step);
  return plan;
}

// A step and its outputs. The device's outputs are the host's from the same tensors, within the
// given number of roundings to bfloat16, the host's rounding to its own type. Float16 has steps of
// 2^-24 near zero.
struct Checked {
  Step step;
  std::vector<Values*> outputs;
  int roundings = 1;

  void Compare() const {
    std::vector<Values> got;
    for (const Values* y : outputs) got.push_back(*y);
    HostTarget().Execute({step}, kThreads);
    for (size_t i = 0; i < got.size(); ++i) {
      std::vector<double> bounds;
      for (const float x : outputs[i]->floats()) {
        bounds.push_back((roundings + 1) * kUnit / 2 * std::abs(x) + 0x1p-24);
      }
      Near("y", got[i], *outputs[i], bounds);
    }
  }
};

// Each operator once, on rows of k elements, in one plan of 11 steps that begins with a projection.
void RunVectorOperators(const Target& target, int64_t k, DataType type) {
  Chain chain(k, type);
  const Values weight = chain.Tensor(), other = chain.Tensor(),
               scale(type, std::vector<float>{0.1f});
  Values normed, summed, sum, added, shifted, by_row, scaled, product, silu, gelu;
  // The norm of a sum uses the rounded sum: each element and the root of the mean of squares move
  // by a rounding. The factor 0.1 is rounded.
  const std::vector<Checked> checked = {
      {chain.Norm(chain.x(), nullptr, weight, normed, nullptr), {&normed}},
      {chain.Norm(normed, &other, weight, summed, &sum), {&summed, &sum}, 3},
      {chain.Apply(Function::kAdd, sum, &normed, Operand::kTensor, added), {&added}},
      {chain.Apply(Function::kAdd, added, &other, Operand::kRow, shifted), {&shifted}},
      {chain.Apply(Function::kMultiply, added, &other, Operand::kRow, by_row), {&by_row}},
      {chain.Apply(Function::kMultiply, added, &scale, Operand::kScalar, scaled), {&scaled}, 2},
      {chain.Apply(Function::kMultiply, scaled, &normed, Operand::kTensor, product), {&product}},
      {chain.Apply(Function::kSilu, product, nullptr, Operand::kTensor, silu), {&silu}},
      {chain.Apply(Function::kGeluTanh, normed, nullptr, Operand::kTensor, gelu), {&gelu}}};
  for (const Checked& c : checked) chain.steps.push_back(c.step);
  Values cast(DataType::kFloat32, k);
  chain.steps.push_back(CastStep{k, gelu.data(), type, cast.data(), DataType::kFloat32});
  target.Execute(PlanOf(chain.steps), kThreads);
  Near("cast", cast, Values(DataType::kFloat32, gelu.floats()), 0x1p-25);  // but for float16
  // Last one first: each compares with the tensors that the device left before it.
  for (size_t i = checked.size(); i-- > 0;) checked[i].Compare();
}

using HostSteps = std::map<std::string, int64_t>;

int64_t Submissions(const Bench& bench) { return bench.device->counters().submissions; }

// 576, 200 and 40 are not whole blocks of a projection, 200 and 40 not whole pieces of a norm.
void VectorOperatorsOfAToken() {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16}) {
    for (const int64_t k : {256, 576, 200, 40}) {
      Bench bench;
      RunVectorOperators(*bench.target, k, type);
      Check(Submissions(bench) == 1, "one submission, got ", Submissions(bench));
      bench.OnlyDevice();
    }
  }
}

// The plan's temporaries, in one piece of memory.
class Temporaries {
 public:
  explicit Temporaries(int64_t bytes) : memory_(static_cast<size_t>(bytes)) {}
  float* Take(int64_t elements) {
    float* first = reinterpret_cast<float*>(memory_.data() + used_);
    used_ += static_cast<size_t>(4 * elements);
    Check(used_ <= memory_.size(), "room for temporaries");
    return first;
  }
  Arena arena() const { return {memory_.data(), memory_.size()}; }

 private:
  std::vector<uint8_t> memory_;
  size_t used_ = 0;
};

// A layer like Gemma 3's, without attention: norms behind O and behind the MLP, whose sums with the
// residual are the next norm's input. Its hidden size, like Gemma's and SmolLM2's, is not a whole
// number of blocks.
void NormsBehindProjections() {
  constexpr int64_t kHidden = 320, kIntermediate = 512;
  Projection o({.n = kHidden}), down({.k = kIntermediate, .n = kHidden}),
      mlp({.k = kHidden,
           .n = kIntermediate,
           .norm = true,
           .skip = true,
           .gated = true,
           .gelu = true}),
      next({.k = kHidden, .n = 288, .norm = true, .skip = true});
  const Values residual(DataType::kFloat32, Exact(kHidden)),
      weight(DataType::kFloat32, Exact(kHidden));
  std::vector<uint8_t> whole;
  for (const bool own : {false, true}) {
    Bench bench;
    Temporaries temporaries(1 << 15);
    float* const o_y = temporaries.Take(kHidden);
    float* const o_normed = temporaries.Take(kHidden);
    float* const sum = temporaries.Take(kHidden);
    float* const mlp_y = temporaries.Take(kIntermediate);
    float* const down_y = temporaries.Take(kHidden);
    float* const next_sum = temporaries.Take(kHidden);
    float* const down_normed = o_y;  // no longer read
    const auto norm = [&](const float* a, float* y) {
      return NormStep{1, kHidden, a, nullptr, weight.data(), y, nullptr, DataType::kFloat32, 1e-6f};
    };
    MatMulStep first = o.Step(), second = mlp.Step(), third = down.Step(), fourth = next.Step();
    first.y = o_y;
    second.a = o_normed;
    second.skip = residual.data();
    second.sum = sum;
    second.y = mlp_y;
    third.a = mlp_y;
    third.y = down_y;
    fourth.a = down_normed;
    fourth.skip = sum;
    fourth.sum = next_sum;
    Plan plan = {first, norm(o_y, o_normed), second, third, norm(down_y, down_normed), fourth};
    if (own) plan.temporaries = temporaries.arena();
    bench.Run(plan);
    bench.OnlyDevice();
    Check(Submissions(bench) == 1, "one submission, got ", Submissions(bench));
    if (own) {
      Check(next.y.bytes == whole, "the same result");
      const int64_t from = bench.device->counters().bytes_from;
      Check(from == 2 * 288, "nothing but the result comes back, got ", from, " bytes");
    }
    whole = next.y.bytes;
    if (own) continue;
    // Compared with the host, from the tensors that the plan left.
    const auto values = [](const float* x, int64_t n) {
      return Values(DataType::kFloat32, std::vector<float>(x, x + n));
    };
    mlp.a = values(o_normed, kHidden);
    mlp.skip = residual;
    mlp.sum = values(sum, kHidden);
    mlp.y = values(mlp_y, kIntermediate);
    mlp.CompareRounded(mlp.OnHost());
    down.a = mlp.y;
    down.y = values(down_y, kHidden);
    down.Compare(down.OnHost());
    next.a = values(down_normed, kHidden);
    next.skip = mlp.sum;
    next.sum = values(next_sum, kHidden);
    next.CompareRounded(next.OnHost());
  }
}

// An embedding's row, scaled, before the first step of the device; operators that the device lacks,
// operators on the host's values, and operators whose results no step of the device reads.
void TheHostsStepsBesideARun() {
  constexpr int64_t kHidden = 256;
  const int64_t index = 3;
  const Values table(DataType::kFloat32, Exact(8 * kHidden)),
      scale(DataType::kFloat32, std::vector<float>{16});
  Projection first({.k = kHidden, .n = kHidden}), second({.k = kHidden, .skip = true});
  Values row(DataType::kFloat32, kHidden), scaled = row, early = row, late = row, again = row;
  const auto apply = [&](Function function, const Values& a, const Values* b, Values& y) {
    return ElementwiseStep{
        function,         1,        kHidden,           a.data(), b == nullptr ? nullptr : b->data(),
        Operand::kScalar, y.data(), DataType::kFloat32};
  };
  const GatherStep gather{static_cast<const uint8_t*>(table.data()),
                          1,
                          kHidden,
                          8,
                          &index,
                          DataType::kInt64,
                          row.data(),
                          DataType::kFloat32,
                          WeightForm{},
                          true};
  MatMulStep a = first.Step(), b = second.Step();
  a.a = scaled.data();
  b.a = first.y.data();
  b.skip = early.data();
  const Plan plan = {gather,
                     apply(Function::kMultiply, row, &scale, scaled),
                     a,
                     apply(Function::kSigmoid, scaled, nullptr, early),  // before the run
                     apply(Function::kSigmoid, first.y, nullptr, late),  // after it
                     apply(Function::kSigmoid, late, nullptr, again),
                     b};
  Bench bench;
  bench.Run(plan);
  Check(Submissions(bench) == 1, "one submission, got ", Submissions(bench));
  const ExecutorCounters counters = bench.target->counters();
  const HostSteps expected = {{"rows of an embedding", 1},
                              {"a vector operator on what the host has", 1},
                              {"an activation that the overlay does not have", 3}};
  Check(counters.host_steps == expected && counters.device_steps == 2, "what the host did");
  Check(counters.host_steps_between.empty(), "nothing divides the plan");
  first.a = scaled;
  first.Compare(first.OnHost());
  second.a = first.y;
  second.skip = Values(DataType::kFloat32, Values(DataType::kBfloat16, early.floats()).floats());
  second.CompareRounded(second.OnHost());
  const std::vector<float> y = first.y.floats(), sigmoid = again.floats();
  for (size_t i = 0; i < y.size(); ++i) {
    const double once = 1 / (1 + std::exp(-double{y[i]})), twice = 1 / (1 + std::exp(-once));
    Check(std::abs(sigmoid[i] - twice) < 1e-6, "sigmoid ", sigmoid[i], ", expected ", twice);
  }
}

// A step of the device that reads the host's result, computed from the device's, has to wait.
void AStepOfTheHostDividesAPlan() {
  for (const bool own : {false, true}) {
    Projection first({.k = 256}), last({.k = 256});
    Temporaries temporaries(1 << 13);
    float* const y = temporaries.Take(256);
    float* const sigmoid = temporaries.Take(256);
    MatMulStep a = first.Step(), b = last.Step();
    a.y = y;
    b.a = sigmoid;
    Plan plan = {a,
                 ElementwiseStep{Function::kSigmoid, 1, 256, y, nullptr, Operand::kTensor, sigmoid,
                                 DataType::kFloat32},
                 b};
    if (own) plan.temporaries = temporaries.arena();
    Bench bench;
    bench.Run(plan);
    Check(Submissions(bench) == 2, "two submissions, got ", Submissions(bench));
    const HostSteps expected = {{"an activation that the overlay does not have", 1}};
    const ExecutorCounters counters = bench.target->counters();
    Check(counters.host_steps == expected && counters.host_steps_between == expected, "its reason");
    last.a = Values(DataType::kFloat32, std::vector<float>(sigmoid, sigmoid + 256));
    last.Compare(last.OnHost());
  }
}

// Rows of the device's results: it reads a single one there, and the host reads several once they
// have come.
void SelectedRows() {
  for (const std::vector<int64_t>& indices : {std::vector<int64_t>{-1}, {1}, {2, 0}}) {
    Bench bench;
    Projection first({.rows = 3, .k = 256, .n = 256});
    const auto count = static_cast<int64_t>(indices.size());
    Values rows(DataType::kFloat32, count * 256);
    const GatherStep select{.weights = static_cast<const uint8_t*>(first.y.data()),
                            .count = count,
                            .k = 256,
                            .n = 3,
                            .indices = indices.data(),
                            .index_type = DataType::kInt64,
                            .y = rows.data(),
                            .type = DataType::kFloat32,
                            .is_table = true};
    bench.Run({first.Step(), select});
    first.Compare(first.OnHost());
    for (size_t i = 0; i < indices.size(); ++i) {
      const size_t row = static_cast<size_t>((indices[i] + 3) % 3) * 1024;
      Check(std::equal(rows.bytes.begin() + static_cast<std::ptrdiff_t>(i * 1024),
                       rows.bytes.begin() + static_cast<std::ptrdiff_t>((i + 1) * 1024),
                       first.y.bytes.begin() + static_cast<std::ptrdiff_t>(row)),
            "row ", i, " is another");
    }
    const auto host_steps = bench.target->counters().host_steps;
    Check(host_steps.size() == (count == 1 ? 0 : 1), "the rows were selected elsewhere");
  }
}

// Nothing else reads the rows: only one of the 3 comes back.
void OfASelectedRowsTensorNoMoreIsFetched() {
  const int64_t last = -1;
  Bench bench;
  Projection first({.rows = 3, .k = 256, .n = 256});
  Values row(DataType::kFloat32, 256);
  const GatherStep select{.weights = static_cast<const uint8_t*>(first.y.data()),
                          .count = 1,
                          .k = 256,
                          .n = 3,
                          .indices = &last,
                          .index_type = DataType::kInt64,
                          .y = row.data(),
                          .type = DataType::kFloat32,
                          .is_table = true};
  const Values want = first.OnHost().y;
  Plan plan = {first.Step(), select};
  plan.temporaries = {first.y.bytes.data(), first.y.bytes.size()};
  const int64_t before = bench.device->counters().bytes_from;
  bench.Run(plan);
  const int64_t fetched = bench.device->counters().bytes_from - before;
  Check(fetched == 2 * 256, "bytes from the device: ", fetched);
  Values only(DataType::kFloat32, std::vector<float>(256));
  std::copy_n(want.bytes.begin() + 2 * 1024, 1024, only.bytes.begin());
  const auto bounds = first.Bounds();
  Near("the row", row, only, {bounds.begin() + 2 * 256, bounds.end()});
}

const Cases kVectorsCases({
    {"of_a_selected_rows_tensor_no_more_is_fetched", OfASelectedRowsTensorNoMoreIsFetched},
    {"selected_rows", SelectedRows},
    {"vector_operators_of_a_token", VectorOperatorsOfAToken},
    {"norms_behind_projections", NormsBehindProjections},
    {"the_hosts_steps_beside_a_run", TheHostsStepsBesideARun},
    {"a_step_of_the_host_divides_a_plan", AStepOfTheHostDividesAPlan},
});

}  // namespace
}  // namespace ort_aie::npu_target
