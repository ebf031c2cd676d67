// The operators between projections, on a target and on the host.
#pragma once

#include <cmath>
#include <vector>

#include "projection.h"

namespace ort_aie::npu_target {

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

inline Plan PlanOf(const std::vector<Step>& steps) {
  Plan plan;
  for (const Step& step : steps) plan.steps.push_back(step);
  return plan;
}

// A step and its outputs. The device's outputs are the host's from the same tensors, within the
// given number of roundings to bfloat16, the host's rounding to its own type, and the device's
// arithmetic. Float16 has steps of 2^-24 near zero.
struct Checked {
  Step step;
  std::vector<Values*> outputs;
  int roundings = 1;
  const Values* activated = nullptr;  // the argument of an activation

  void Compare(const Arithmetic& arithmetic) const {
    std::vector<Values> got;
    for (const Values* y : outputs) got.push_back(*y);
    HostTarget().Execute({step}, kThreads);
    const std::vector<float> gates =
        activated == nullptr ? std::vector<float>() : activated->floats();
    for (size_t i = 0; i < got.size(); ++i) {
      std::vector<double> bounds;
      for (const float x : outputs[i]->floats()) {
        const double own =
            activated == nullptr
                ? arithmetic.norm
                : arithmetic.activation + arithmetic.gate * std::abs(gates[bounds.size()]);
        bounds.push_back(((roundings + 1) * kUnit / 2 + own) * std::abs(x) + 0x1p-24);
      }
      Near("y", got[i], *outputs[i], bounds);
    }
  }
};

// Each operator once, on rows of k elements, in one plan of 11 steps that begins with a projection.
inline void RunVectorOperators(const Target& target, int64_t k, DataType type,
                               const Arithmetic& arithmetic = {}) {
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
      {chain.Apply(Function::kSilu, product, nullptr, Operand::kTensor, silu),
       {&silu},
       1,
       &product},
      {chain.Apply(Function::kGeluTanh, normed, nullptr, Operand::kTensor, gelu),
       {&gelu},
       1,
       &normed}};
  for (const Checked& c : checked) chain.steps.push_back(c.step);
  Values cast(DataType::kFloat32, k);
  chain.steps.push_back(CastStep{k, gelu.data(), type, cast.data(), DataType::kFloat32});
  target.Execute(PlanOf(chain.steps), kThreads);
  Near("cast", cast, Values(DataType::kFloat32, gelu.floats()), 0x1p-25);  // but for float16
  // Last one first: each compares with the tensors that the device left before it.
  for (size_t i = checked.size(); i-- > 0;) checked[i].Compare(arithmetic);
}

}  // namespace ort_aie::npu_target
