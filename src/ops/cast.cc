// aie.Cast(A) -> Y: A in another floating-point type, rounded to nearest even.
//   A  (...) float, float16 or bfloat16
//   Y  as A
// Attributes: dtype (TensorProto data type of Y: FLOAT, FLOAT16 or BFLOAT16), format.
#include "base/error.h"
#include "ops/op.h"

namespace ort_aie {
namespace {

class Cast final : public Op {
 public:
  explicit Cast(const NodeInfo& info) : type_(FloatDtype(info, 0)) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    RequireFloat("A", inputs[0]);
    outputs[0] = {type_, inputs[0].shape};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor& a = inputs[0];
    const int64_t count = ElementCount(a.shape).As("input A");
    if (count == 0) return;
    plan.steps.emplace_back(
        CastStep{.count = count, .x = a.data, .from = a.type, .y = buffers[0], .to = type_});
  }

 private:
  const DataType type_;
};

void InferCast(const ShapeContext& context) {
  auto value = RequiredActivations(context);
  value.type = NumberOf(TypeOfNumber(context.Int("dtype", 0)));
  context.SetOutput(0, value);
}

}  // namespace

OpDescription DescribeCast() {
  return {.name = "Cast",
          .inputs = 1,
          .required_inputs = 1,
          .attributes = {{.name = "dtype", .required = true}},
          .create = MakeOp<Cast>,
          .infer = InferCast};
}

}  // namespace ort_aie
