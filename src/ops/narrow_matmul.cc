// aie.NarrowMatMul(A, W) -> Y: A . W in float32, with few columns, such as one for each head.
// ONNX's MatMul of floats that are not to be quantised.
//   A  (..., K) float, float16 or bfloat16
//   W  (K, N) of A's type, N at most kMostNarrowColumns
//   Y  (..., N) of A's type
// Attributes: K, N, format.
#include "base/error.h"
#include "ops/eligibility.h"
#include "ops/op.h"

namespace ort_aie {
namespace {

class NarrowMatMul final : public Op {
 public:
  enum Input { kA, kW, kInputCount };

  explicit NarrowMatMul(const NodeInfo& info) : k_(info.Int("K", 0)), n_(info.Int("N", 0)) {
    Require(k_ > 0 && n_ > 0 && n_ <= kMostNarrowColumns,
            "attributes K and N must be positive, N at most ", kMostNarrowColumns, ", got ", k_,
            " and ", n_);
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor& a = inputs[kA];
    RequireFloat("A", a);
    Require(!a.shape.empty() && a.shape.back() == k_, "input A must be (..., ", k_, "), got ",
            a.shape);
    RequireTensor("W", inputs[kW], a.type, {k_, n_});
    outputs[0] = {a.type, a.shape};
    outputs[0].shape.back() = n_;
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor& a = inputs[kA];
    const int64_t rows = ElementCount(a.shape).As("input A") / k_;
    if (rows == 0) return;
    plan.steps.emplace_back(NarrowStep{.rows = rows,
                                       .k = k_,
                                       .n = n_,
                                       .x = a.data,
                                       .weights = inputs[kW].data,
                                       .y = buffers[0],
                                       .type = a.type});
  }

 private:
  const int64_t k_, n_;
};

void InferNarrowMatMul(const ShapeContext& context) {
  auto value = RequiredActivations(context);
  value.dims.back() = DimOf(context, "N");
  context.SetOutput(0, value);
}

}  // namespace

OpDescription DescribeNarrowMatMul() {
  return {.name = "NarrowMatMul",
          .inputs = NarrowMatMul::kInputCount,
          .required_inputs = NarrowMatMul::kInputCount,
          .attributes = {RequiredSize("K"), RequiredSize("N")},
          .create = MakeOp<NarrowMatMul>,
          .infer = InferNarrowMatMul};
}

}  // namespace ort_aie
