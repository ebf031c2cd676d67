// The ops of the domain aie, used both for a node of ONNX Runtime and for a step of a recipe.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ops/format.h"
#include "ops/options.h"
#include "ops/plan.h"

namespace ort_aie {

// What an op reads of its node when it is made, the same through both doors.
class NodeInfo {
 public:
  virtual ~NodeInfo() = default;
  virtual int64_t Int(const char* attribute, int64_t fallback) const = 0;
  virtual float Float(const char* attribute, float fallback) const = 0;
  // Empty if the node has no such attribute.
  virtual std::string String(const char* attribute) const = 0;
  // Absent if input `index` is not an initializer.
  virtual Tensor ConstantInput(size_t index) const = 0;
};

// Types and shapes during shape inference.
class ShapeContext {
 public:
  // Unknown dimensions are -1, with or without a name.
  struct Dim {
    int64_t value = -1;
    std::string name = {};
  };
  struct Value {
    int64_t type = 0;  // ONNX's number of it (TensorProto.DataType)
    std::vector<Dim> dims = {};
  };

  virtual ~ShapeContext() = default;
  // Absent: an optional input that is not given, or that a stand-in leaves out.
  virtual std::optional<Value> Input(size_t index) const = 0;
  virtual int64_t Int(const char* attribute, int64_t fallback) const = 0;
  virtual std::string String(const char* attribute) const = 0;
  virtual void SetOutput(size_t index, const Value& value) const = 0;
};

class Op {
 public:
  struct Output {
    static constexpr int kOwn = -1;

    DataType type = DataType::kOther;  // kOther: the call has no such output
    Shape shape = {};
    // The input whose memory the output may share, because both are equal. Only for ops with
    // `passes_on`.
    int same_as = kOwn;
  };

  virtual ~Op() = default;
  // Checks the inputs of a call and describes its outputs. The inputs are given by position, and
  // are as many as the op can have. Throws Error naming the input, what was expected and what came.
  virtual void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const = 0;
  // Call after Describe. Adds the op's work to the plan. A buffer is null if its output is not
  // wanted.
  virtual void Append(std::span<const Tensor> inputs, std::span<const Output> outputs,
                      std::span<void* const> buffers, Plan& plan) const = 0;
};

// The values that an attribute may have. An attribute without bounds is not a size; the model chose
// its value.
struct AttributeRule {
  enum Kind { kInt, kFloat, kString };
  const char* name;
  Kind kind = kInt;
  bool required = false;  // for an integer
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
};

constexpr AttributeRule RequiredSize(const char* name) {
  return {.name = name, .required = true, .least = 1};
}
constexpr AttributeRule FloatAttribute(const char* name) {
  return {.name = name, .kind = AttributeRule::kFloat};
}
constexpr AttributeRule TextAttribute(const char* name) {
  return {.name = name, .kind = AttributeRule::kString};
}

struct OpDescription {
  const char* name;
  size_t inputs, required_inputs, outputs = 1, required_outputs = 1;
  // Outputs whose types a node's readers need. ONNX Runtime before 1.28 infers types of required
  // outputs only, so these are required there.
  size_t typed_outputs = 0;
  // Recipes are checked by these before an op is made. `format` is one of every op's.
  std::vector<AttributeRule> attributes = {};
  int64_t last_format = kFormat;
  // Throws Error if attributes or weights do not fit together.
  std::unique_ptr<Op> (*create)(const NodeInfo& info, const Options& options);
  void (*infer)(const ShapeContext& context);
  bool passes_on = false;  // output 0 may be input 0
  // Has weights or a cache. Regions exist for such steps; others join one only between them.
  bool anchor = false;
};

// At least as many as any op has.
inline constexpr size_t kMostInputs = 20, kMostOutputs = 4;

// What descriptions are made of.
template <typename K>
std::unique_ptr<Op> MakeOp(const NodeInfo& info, const Options& options) {
  if constexpr (std::is_default_constructible_v<K>) {
    return std::make_unique<K>();
  } else if constexpr (std::is_constructible_v<K, const NodeInfo&>) {
    return std::make_unique<K>(info);
  } else {
    return std::make_unique<K>(info, options);
  }
}
// The type that attribute dtype names. Throws Error unless it is a float type.
DataType FloatDtype(const NodeInfo& info, int64_t fallback);
ShapeContext::Value RequiredInput(const ShapeContext& context, size_t index, const char* name);
// Input 0. An unknown rank arrives as 0; tensors of language models are (batch, sequence,
// channels).
ShapeContext::Value RequiredActivations(const ShapeContext& context, const char* name = "A");
// What an attribute says; unknown without it.
ShapeContext::Dim DimOf(const ShapeContext& context, const char* attribute);
// One output, of A's type and shape.
void InferLikeA(const ShapeContext& context);

// Throws Error for a format that the op does not have, or as its `create`.
std::unique_ptr<Op> MakeOp(const OpDescription& op, const NodeInfo& info, const Options& options);
std::span<const OpDescription> AllOps();
// Null if the op is unknown.
const OpDescription* FindOp(std::string_view name);

OpDescription DescribeQ4NXMatMul();
OpDescription DescribeGemm();
OpDescription DescribeQ4NXGatedMLP();
OpDescription DescribeGatedGemm();
OpDescription DescribeQ4NXGather();
OpDescription DescribeQ4NXMoE();
OpDescription DescribeFlowAttention();
OpDescription DescribeRMSNorm();
OpDescription DescribeGatedRMSNorm();
OpDescription DescribeAdd();
OpDescription DescribeMul();
OpDescription DescribeActivation();
OpDescription DescribeCast();
OpDescription DescribeGather();
OpDescription DescribeSelectRows();
OpDescription DescribeSwiglu();
OpDescription DescribeReshape();
OpDescription DescribeSplit();
OpDescription DescribeTranspose();
OpDescription DescribeNarrowMatMul();
OpDescription DescribeCausalConv();
OpDescription DescribeLinearAttention();
OpDescription DescribeLinearAttentionGate();
OpDescription DescribeGatedDeltaNet();

}  // namespace ort_aie
