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

// A step and its outputs. The device's are near the host's from the same tensors.
struct Checked {
  Step step;
  std::vector<Values*> outputs;

  void Compare(int64_t k) const {
    std::vector<Values> got;
    for (const Values* y : outputs) got.push_back(*y);
    HostTarget().Execute({step}, kThreads);
    for (size_t i = 0; i < got.size(); ++i) {
      Near("y", got[i], *outputs[i], k);
    }
  }
};

// Each operator once, on rows of k elements, in one plan of 11 steps that begins with a projection.
void RunVectorOperators(const Target& target, int64_t k, DataType type) {
  Chain chain(k, type);
  const Values weight = chain.Tensor(), other = chain.Tensor(),
               scale(type, std::vector<float>{0.1f});
  Values normed, summed, sum, added, shifted, by_row, scaled, product, silu, gelu;
  const std::vector<Checked> checked = {
      {chain.Norm(chain.x(), nullptr, weight, normed, nullptr), {&normed}},
      {chain.Norm(normed, &other, weight, summed, &sum), {&summed, &sum}},
      {chain.Apply(Function::kAdd, sum, &normed, Operand::kTensor, added), {&added}},
      {chain.Apply(Function::kAdd, added, &other, Operand::kRow, shifted), {&shifted}},
      {chain.Apply(Function::kMultiply, added, &other, Operand::kRow, by_row), {&by_row}},
      {chain.Apply(Function::kMultiply, added, &scale, Operand::kScalar, scaled), {&scaled}},
      {chain.Apply(Function::kMultiply, scaled, &normed, Operand::kTensor, product), {&product}},
      {chain.Apply(Function::kSilu, product, nullptr, Operand::kTensor, silu), {&silu}},
      {chain.Apply(Function::kGeluTanh, normed, nullptr, Operand::kTensor, gelu), {&gelu}}};
  for (const Checked& c : checked) chain.steps.push_back(c.step);
  Values cast(DataType::kFloat32, k);
  chain.steps.push_back(CastStep{k, gelu.data(), type, cast.data(), DataType::kFloat32});
  target.Execute(PlanOf(chain.steps), kThreads);
  Near("cast", cast, Values(DataType::kFloat32, gelu.floats()), k, 0x1p-11);  // but for float16
  // Last one first: each compares with the tensors that the device left before it.
  for (size_t i = checked.size(); i-- > 0;) checked[i].Compare(k);
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
  Near("the row", row, only, 256);
}

const Cases kVectorsCases({
    {"of_a_selected_rows_tensor_no_more_is_fetched", OfASelectedRowsTensorNoMoreIsFetched},
    {"selected_rows", SelectedRows},
    {"vector_operators_of_a_token", VectorOperatorsOfAToken},
    {"the_hosts_steps_beside_a_run", TheHostsStepsBesideARun},
});

}  // namespace
}  // namespace ort_aie::npu_target
