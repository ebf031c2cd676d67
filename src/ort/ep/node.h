// What the execution provider reads of ONNX Runtime's graphs. Views are valid as long as the graph.
#pragma once

#include <onnxruntime_c_api.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ort/api.h"

namespace ort_aie::ep {

// An input or output of a node; `name` is empty where it is left out.
struct Value {
  std::string name;
  std::string type;  // as ONNX names it: FLOAT, FLOAT16 ...; "of unknown type"
  Shape shape;       // empty where it is not known, as a dimension is -1
  Tensor initializer;
  explicit operator bool() const { return !name.empty(); }
  // A dimension, or 0 where it is not known.
  int64_t dim(size_t axis) const {
    return axis < shape.size() ? std::max<int64_t>(shape[axis], 0) : 0;
  }
};

class Node {
 public:
  Node(const OrtApi* api, const OrtNode* node);

  const std::string& name() const { return name_; }
  bool Is(const char* domain, const char* op_type) const {
    return domain_ == domain && op_type_ == op_type;
  }
  // Absent beyond the last.
  const Value& input(size_t index) const { return At(inputs_, index); }
  const Value& output(size_t index) const { return At(outputs_, index); }
  const std::vector<Value>& inputs() const { return inputs_; }
  const std::vector<Value>& outputs() const { return outputs_; }

  bool Has(const char* attribute) const { return Attribute(attribute) != nullptr; }
  int64_t Int(const char* attribute, int64_t fallback) const;
  float Float(const char* attribute, float fallback) const;
  std::string String(const char* attribute, const char* fallback) const;

  // Branches and bodies of a control flow node.
  std::vector<const OrtGraph*> Bodies() const;

  const OrtNode* get() const { return node_; }

 private:
  static const Value& At(const std::vector<Value>& values, size_t index);
  const OrtOpAttr* Attribute(const char* name) const;
  Value Describe(const OrtValueInfo* info) const;

  const OrtApi* api_;
  const OrtNode* node_;
  std::string name_, domain_, op_type_;
  std::vector<Value> inputs_, outputs_;
};

std::vector<Node> NodesOf(const OrtApi* api, const OrtGraph* graph);

}  // namespace ort_aie::ep
