#include "ops/elementwise.h"

#include <algorithm>

#include "base/error.h"
#include "ops/format.h"

namespace ort_aie {
namespace {

constexpr bool IsBinary(Function function) {
  return function == Function::kAdd || function == Function::kMultiply;
}

// How B is applied to A.
ElementwiseStep::Operand OperandOf(const Tensor& a, const Tensor& b) {
  using enum ElementwiseStep::Operand;
  const auto all_ones = [](const int64_t* first, const int64_t* last) {
    return std::all_of(first, last, [](int64_t dim) { return dim == 1; });
  };
  if (b.type == a.type && b.shape == a.shape) return kTensor;
  // The result has A's rank, so B must not have more dimensions.
  if (b.type == a.type && b.shape.size() <= a.shape.size()) {
    if (all_ones(b.shape.begin(), b.shape.end())) return kScalar;
    const int64_t* last = b.shape.end() - 1;
    if (*last == a.shape.back() && all_ones(b.shape.begin(), last)) return kRow;
  }
  const std::string row = a.shape.empty() ? "" : Concat("(", a.shape.back(), ") or ");
  Fail(ErrorCode::kInvalidArgument, "input B must be ", NameOf(a.type), " ", a.shape, ", ", row,
       "one value, got ", NameOf(b.type), " ", b.shape);
}

}  // namespace

Function ActivationFunction(const std::string& name) {
  if (name == "silu") return Function::kSilu;
  if (name == "gelu") return Function::kGelu;
  if (name == "gelu_tanh") return Function::kGeluTanh;
  if (name == "sigmoid") return Function::kSigmoid;
  Fail(ErrorCode::kInvalidGraph,
       "attribute function must be silu, gelu, gelu_tanh or sigmoid, got '", name, "'");
}

Elementwise::Elementwise(const ElementwiseAttributes& attributes) : function_(attributes.function) {
  CheckFormat(attributes.format);
}

Shape Elementwise::OutputShape(const Tensor& a) const {
  Require(IsFloat(a.type), "input A must be float, float16 or bfloat16, got ", NameOf(a.type));
  return a.shape;
}

void Elementwise::Append(const Inputs& inputs, void* y, Plan& plan) const {
  const auto& [a, b] = inputs;
  ElementwiseStep step = {};
  step.function = function_;
  const int64_t count = ElementCount(a.shape).As("input A");
  if (IsBinary(function_)) {
    step.b_is = OperandOf(a, b);
    step.b = b.data;
  }
  if (count == 0) return;
  step.k = a.shape.empty() ? 1 : a.shape.back();
  step.rows = count / step.k;
  step.a = a.data;
  step.y = y;
  step.type = a.type;
  plan.steps.emplace_back(step);
}

}  // namespace ort_aie
