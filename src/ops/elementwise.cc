// Element by element, each computed in float32 and rounded once:
//
// aie.Add(A, B), aie.Mul(A, B) -> Y
//   A  (..., K) float, float16 or bfloat16, of any rank
//   B  of A's type: A's shape, or (K), or a single value. (K) and the value may have leading
//      dimensions of 1, up to A's rank; the value may have rank 0
//   Y  as A
// aie.SwiGLU(A, B) -> Y = silu(A) * B, B of A's type and shape
// aie.Activation(A) -> Y
//   attribute function  "silu", "gelu", "gelu_tanh" or "sigmoid"; gelu is the one with erf. "unit"
//                       divides each row of the last dimension by its length, a zero one by 1
// Attribute of all of them: format.
#include <algorithm>

#include "base/error.h"
#include "ops/op.h"

namespace ort_aie {
namespace {

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

class Elementwise final : public Op {
 public:
  enum Input { kA, kB };

  explicit Elementwise(Function function) : function_(function) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    RequireFloat("A", inputs[kA]);
    outputs[0] = {inputs[kA].type, inputs[kA].shape};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor &a = inputs[kA], &b = inputs[kB];
    ElementwiseStep step = {};
    step.function = function_;
    const int64_t count = ElementCount(a.shape).As("input A");
    if (IsBinary(function_)) {
      if (function_ == Function::kSwiglu) RequireTensor("B", b, a.type, a.shape);
      step.b_is = OperandOf(a, b);
      step.b = b.data;
    }
    if (count == 0) return;
    // A row is the last dimension. If that is 1, such as a token's (batch, channels, 1), the one
    // before it is as good, but not for a function of the whole row.
    size_t last = a.shape.size();
    while (last > 1 && a.shape[last - 1] == 1 && function_ != Function::kUnit) --last;
    step.k = a.shape.empty() ? 1 : a.shape[last - 1];
    step.rows = count / step.k;
    step.a = a.data;
    step.y = buffers[0];
    step.type = a.type;
    plan.steps.emplace_back(step);
  }

 private:
  const Function function_;
};

template <Function function>
OpDescription DescribeBinary(const char* name) {
  return {.name = name,
          .inputs = 2,
          .required_inputs = 2,
          .create = [](const NodeInfo&, const Options&) -> std::unique_ptr<Op> {
            return std::make_unique<Elementwise>(function);
          },
          .infer = InferLikeA};
}

}  // namespace

Function ActivationFunction(const std::string& name) {
  if (name == "silu") return Function::kSilu;
  if (name == "gelu") return Function::kGelu;
  if (name == "gelu_tanh") return Function::kGeluTanh;
  if (name == "sigmoid") return Function::kSigmoid;
  if (name == "unit") return Function::kUnit;
  Fail(ErrorCode::kInvalidGraph,
       "attribute function must be silu, gelu, gelu_tanh, sigmoid or unit, got '", name, "'");
}

OpDescription DescribeAdd() { return DescribeBinary<Function::kAdd>("Add"); }
OpDescription DescribeMul() { return DescribeBinary<Function::kMultiply>("Mul"); }
OpDescription DescribeSwiglu() { return DescribeBinary<Function::kSwiglu>("SwiGLU"); }
OpDescription DescribeActivation() {
  return {.name = "Activation",
          .inputs = 1,
          .required_inputs = 1,
          .attributes = {TextAttribute("function")},
          .create = [](const NodeInfo& info, const Options&) -> std::unique_ptr<Op> {
            return std::make_unique<Elementwise>(ActivationFunction(info.String("function")));
          },
          .infer = InferLikeA};
}

}  // namespace ort_aie
