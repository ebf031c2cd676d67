// aie.Q4NXMatMul and aie.Q4NXGather for ONNX Runtime.
#include <algorithm>

#include "ops/q4nx_gather.h"
#include "ops/q4nx_matmul.h"
#include "ort/custom_op.h"

namespace ort_aie {
namespace {

constexpr size_t kWeights = 1;  // of Q4NXMatMul(A, W, bias?)

class MatMulKernel final : public Kernel {
 public:
  explicit MatMulKernel(const KernelInfo& info)
      : options_(ReadOptions([&](const char* name) { return info.ConfigEntry(name); })),
        op_({info.Int("K", 0), info.Int("N", 0), info.Int("accuracy_level", 0),
             info.Int("symmetric", 0), info.Int("format", 0)},
            info.ConstantInput(kWeights), options_) {}

  void Compute(const KernelContext& context) const override {
    const Tensor a = context.Input(0);
    const Tensor bias = context.InputCount() > 2 ? context.Input(2) : Tensor{};
    void* y = context.Output(0, op_.OutputShape(a));
    options_.target->Execute(op_.MakePlan(a, bias, y), OrtThreadPool(context));
  }

 private:
  const Options options_;
  const Q4NXMatMul op_;
};

class GatherKernel final : public Kernel {
 public:
  explicit GatherKernel(const KernelInfo& info)
      : options_(ReadOptions([&](const char* name) { return info.ConfigEntry(name); })),
        op_({info.Int("K", 0), info.Int("N", 0), info.Int("format", 0),
             FromOnnxType(static_cast<ONNXTensorElementDataType>(
                 info.Int("dtype", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)))},
            info.ConstantInput(0)) {}

  void Compute(const KernelContext& context) const override {
    const Tensor indices = context.Input(1);
    void* y = context.Output(0, op_.OutputShape(indices));
    options_.target->Execute(op_.MakePlan(indices, y), OrtThreadPool(context));
  }

 private:
  const Options options_;
  const Q4NXGather op_;
};

void InferMatMul(const ShapeContext& context) {
  auto value = context.Input(0);
  if (!value) Fail(ErrorCode::kInvalidGraph, "Q4NXMatMul has no input A");
  // An unknown rank arrives as 0; projections of language models are (batch, sequence, channels).
  if (value->dims.empty()) value->dims.resize(3);
  value->dims.back() = {std::max<int64_t>(-1, context.Int("N", -1)), ""};
  context.SetOutput(0, *value);
}

void InferGather(const ShapeContext& context) {
  auto value = context.Input(1);
  if (!value) Fail(ErrorCode::kInvalidGraph, "Q4NXGather has no input indices");
  value->type = static_cast<ONNXTensorElementDataType>(
      context.Int("dtype", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT));
  value->dims.push_back({std::max<int64_t>(-1, context.Int("K", -1)), ""});
  context.SetOutput(0, *value);
}

}  // namespace

const OpDescription& Q4NXMatMulDescription() {
  static const OpDescription description = {"Q4NXMatMul",
                                            3,
                                            2,
                                            1,
                                            [](const KernelInfo& info) -> std::unique_ptr<Kernel> {
                                              return std::make_unique<MatMulKernel>(info);
                                            },
                                            InferMatMul};
  return description;
}

const OpDescription& Q4NXGatherDescription() {
  static const OpDescription description = {"Q4NXGather",
                                            2,
                                            2,
                                            1,
                                            [](const KernelInfo& info) -> std::unique_ptr<Kernel> {
                                              return std::make_unique<GatherKernel>(info);
                                            },
                                            InferGather};
  return description;
}

}  // namespace ort_aie
