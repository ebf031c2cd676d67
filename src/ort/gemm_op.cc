// aie.GEMM for ONNX Runtime.
#include <algorithm>

#include "ops/gemm.h"
#include "ort/custom_op.h"

namespace ort_aie {
namespace {

class GemmKernel final : public Kernel {
 public:
  enum Input { kA, kWeights, kBias, kInputCount };

  explicit GemmKernel(const NodeInfo& info)
      : options_(ReadOptions(info)),
        op_({info.Int("K", 0), info.Int("N", 0), info.Int("format", 0)},
            info.ConstantInput(kWeights), options_) {}

  void Compute(const KernelContext& context) const override {
    const Tensor a = context.Input(kA);
    void* y = context.Output(0, a.type, op_.OutputShape(a));
    options_.target->Execute(op_.MakePlan(a, context.Input(kBias), y), OrtThreadPool(context));
  }

 private:
  const SessionOptions options_;
  const Gemm op_;
};

void Infer(const ShapeContext& context) {
  auto value = context.Input(GemmKernel::kA);
  if (!value) Fail(ErrorCode::kInvalidGraph, "input A is missing");
  // An unknown rank arrives as 0; activations are (batch, sequence, channels).
  if (value->dims.empty()) value->dims.resize(3);
  value->dims.back() = {std::max<int64_t>(-1, context.Int("N", -1)), ""};
  context.SetOutput(0, *value);
}

}  // namespace

const OpDescription& GemmDescription() {
  static const OpDescription description = {
      .name = "GEMM",
      .inputs = GemmKernel::kInputCount,
      .required_inputs = 2,
      .outputs = 1,
      .required_outputs = 1,
      .create = [](const NodeInfo& info) -> std::unique_ptr<Kernel> {
        return std::make_unique<GemmKernel>(info);
      },
      .infer = Infer};
  return description;
}

}  // namespace ort_aie
