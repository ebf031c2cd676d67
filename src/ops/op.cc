#include "ops/op.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace ort_aie {

DataType FloatDtype(const NodeInfo& info, int64_t fallback) {
  const DataType type = TypeOfNumber(info.Int("dtype", fallback));
  Require(IsFloat(type), "attribute dtype must be FLOAT (1), FLOAT16 (10) or BFLOAT16 (16)");
  return type;
}

ShapeContext::Value RequiredInput(const ShapeContext& context, size_t index, const char* name) {
  auto value = context.Input(index);
  if (!value) Fail(ErrorCode::kInvalidGraph, "input ", name, " is missing");
  return *value;
}

ShapeContext::Value RequiredActivations(const ShapeContext& context, const char* name) {
  auto value = RequiredInput(context, 0, name);
  if (value.dims.empty()) value.dims.resize(3);
  return value;
}

ShapeContext::Dim DimOf(const ShapeContext& context, const char* attribute) {
  return {std::max<int64_t>(-1, context.Int(attribute, -1))};
}

void InferLikeA(const ShapeContext& context) { context.SetOutput(0, RequiredActivations(context)); }

std::span<const OpDescription> AllOps() {
  static const auto all = [] {
    std::array ops = {
        DescribeQ4NXMatMul(),
        DescribeGemm(),
        DescribeQ4NXGatedMLP(),
        DescribeGatedGemm(),
        DescribeQ4NXGather(),
        DescribeFlowAttention(),
        DescribeRMSNorm(),
        DescribeAdd(),
        DescribeMul(),
        DescribeActivation(),
        DescribeCast(),
        DescribeGather(),
        DescribeSelectRows(),
        DescribeQ4NXMoE(),
        DescribeGatedRMSNorm(),
        DescribeSwiglu(),
        DescribeReshape(),
        DescribeSplit(),
        DescribeTranspose(),
        DescribeNarrowMatMul(),
        DescribeCausalConv(),
        DescribeLinearAttention(),
        DescribeLinearAttentionGate(),
        DescribeGatedDeltaNet(),
    };
    for (OpDescription& op : ops) op.attributes.push_back({.name = "format", .required = true});
    return ops;
  }();
  return all;
}

std::unique_ptr<Op> MakeOp(const OpDescription& op, const NodeInfo& info, const Options& options) {
  const int64_t format = info.Int("format", 0);
  const std::string known = op.last_format == kFormat
                                ? Concat("format ", kFormat)
                                : Concat("formats ", kFormat, " to ", op.last_format);
  Require(format >= kFormat && format <= op.last_format, "the model has format ", format,
          ", but this library reads ", known,
          "; compile the model again with this version (ort-aie compile)");
  return op.create(info, options);
}

const OpDescription* FindOp(std::string_view name) {
  const auto found = std::ranges::find(AllOps(), name, &OpDescription::name);
  return found != AllOps().end() ? &*found : nullptr;
}

}  // namespace ort_aie
