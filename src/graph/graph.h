// A model's graph as plain data, the same through both doors: the nodes in topological order, and
// the values between them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ops/op.h"

namespace ort_aie::graph {

inline constexpr int kAbsent = -1;

using Dim = ShapeContext::Dim;
using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>>;

struct Value {
  std::string name;
  int64_t type = 0;  // ONNX's number of it; 0: not known
  std::optional<std::vector<Dim>> shape;
  // Of a constant: type, shape and `bytes`; `data` if the door has it at hand.
  Tensor constant;
  bool wanted = false;  // outside of the nodes: an output of the graph, or read in a body
  bool logits = false;  // the model's output of this name
  // The MatMulNBits whose packed weights these are, or the QMoE, of whose constants
  // (graph/experts.h) it is number packed_part. kAbsent for the model's own values.
  int packed_from = kAbsent, packed_part = kAbsent;
  WeightForm packed_form = {};
};

struct Node {
  std::string name, domain, op_type;
  std::map<std::string, Attribute, std::less<>> attributes;
  std::vector<int> inputs, outputs;  // values, or kAbsent

  bool Is(std::string_view its_domain, std::string_view type) const {
    return domain == its_domain && op_type == type;
  }
  // kAbsent beyond the last.
  int input(size_t position) const { return position < inputs.size() ? inputs[position] : kAbsent; }
  int output(size_t position) const {
    return position < outputs.size() ? outputs[position] : kAbsent;
  }
  bool Has(std::string_view attribute) const { return attributes.contains(attribute); }
  // Throw Error if the attribute has another type.
  int64_t Int(std::string_view attribute, int64_t fallback) const;
  float Float(std::string_view attribute, float fallback) const;
  std::string String(std::string_view attribute, const char* fallback) const;
};

struct Graph {
  std::vector<Value> values;
  std::vector<Node> nodes;
  // Weights are packed in the smallest form that the target reads where it is; else, and where they
  // are experts' weights, as shipping .q4nx files have them. Null: any form is.
  std::function<bool(const WeightForm&)> reads_in_place;

  // An absent value if there is not one at this index.
  const Value& value(int index) const;
  // A dimension of a value, or 0 if it is not known.
  int64_t FixedDim(int value, size_t axis) const;
  // -1 for a dimension that is not known; nothing if their number is not.
  std::optional<std::vector<int64_t>> KnownDims(int value) const;
  // Whether a node reads the value, or something outside of the nodes.
  bool IsRead(int value) const;
  // The name of a node. Without one, its type and its output, as the graph passes label it.
  std::string LabelOf(const Node& node) const;
};

// The elements of a constant vector, if they are int64 and available.
std::optional<std::vector<int64_t>> Integers(const Value& value);

// The ONNX name of a type, such as FLOAT or UINT8; else "of another type".
const char* TypeName(int64_t type);

// Whether both have the same number of dimensions, and each is the same number or has the same
// name.
bool SameShape(const Value& a, const Value& b);

}  // namespace ort_aie::graph
