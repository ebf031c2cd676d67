// An aie.* op as an OrtCustomOp table: filled by hand, because the C++ wrapper of ONNX Runtime
// keeps one OrtApi for the whole process.
#pragma once

#include <memory>
#include <vector>

#include "ort/api.h"
#include "targets/session_options.h"

namespace ort_aie {

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void Compute(const KernelContext& context) const = 0;
};

// Types and shapes while a graph is resolved; unknown dimensions are -1, with a name or without.
class ShapeContext {
 public:
  struct Dim {
    int64_t value = -1;
    std::string name;
  };
  struct Value {
    ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    std::vector<Dim> dims;
  };

  ShapeContext(const OrtApi* api, OrtShapeInferContext* context) : api_(api), context_(context) {}
  // Absent: an optional input that is not given, or that a stand-in leaves out.
  std::optional<Value> Input(size_t index) const;
  int64_t Int(const char* attribute, int64_t fallback) const;
  void SetOutput(size_t index, const Value& value) const;

 private:
  const OrtApi* api_;
  OrtShapeInferContext* context_;
};

struct OpDescription {
  const char* name;
  size_t inputs, required_inputs, outputs, required_outputs;
  std::unique_ptr<Kernel> (*create)(const NodeInfo& info);
  void (*infer)(const ShapeContext& context);
};

// Options as a node has them.
SessionOptions ReadOptions(const NodeInfo& info);

const OpDescription& Q4NXMatMulDescription();
const OpDescription& GemmDescription();
const OpDescription& Q4NXGatedMLPDescription();
const OpDescription& GatedGemmDescription();
const OpDescription& Q4NXGatherDescription();
const OpDescription& FlowAttentionDescription();

class CustomOp : public OrtCustomOp {
 public:
  CustomOp(const OpDescription& description, const RuntimeApi& runtime);

 private:
  const OpDescription& description_;
  const RuntimeApi runtime_;
};

}  // namespace ort_aie
