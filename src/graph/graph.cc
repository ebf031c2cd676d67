#include "graph/graph.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace ort_aie::graph {
namespace {

// Null if the node has no such attribute. Throws Error if it has another type.
template <typename T>
const T* Find(const Node& node, std::string_view attribute, const char* type) {
  const auto found = node.attributes.find(attribute);
  if (found == node.attributes.end()) return nullptr;
  const auto* value = std::get_if<T>(&found->second);
  if (value == nullptr) {
    static constexpr const char* kTypes[] = {"int", "float", "str", "a list"};  // of Attribute
    Fail(ErrorCode::kInvalidGraph, "node '", node.name, "' (", node.op_type, "): attribute ",
         attribute, " must be ", type, ", got ", kTypes[found->second.index()]);
  }
  return value;
}

}  // namespace

int64_t Node::Int(std::string_view attribute, int64_t fallback) const {
  const auto* found = Find<int64_t>(*this, attribute, "int");
  return found != nullptr ? *found : fallback;
}

float Node::Float(std::string_view attribute, float fallback) const {
  const auto* found = Find<float>(*this, attribute, "float");
  return found != nullptr ? *found : fallback;
}

std::string Node::String(std::string_view attribute, const char* fallback) const {
  const auto* found = Find<std::string>(*this, attribute, "str");
  return found != nullptr ? *found : fallback;
}

const Value& Graph::value(int index) const {
  static const Value absent;
  return index == kAbsent ? absent : values[static_cast<size_t>(index)];
}

int64_t Graph::FixedDim(int index, size_t axis) const {
  const auto& shape = value(index).shape;
  return shape && axis < shape->size() ? std::max<int64_t>((*shape)[axis].value, 0) : 0;
}

std::optional<std::vector<int64_t>> Graph::KnownDims(int index) const {
  const Value& its = value(index);
  std::vector<int64_t> dims;
  if (its.constant) {
    dims.assign(its.constant.shape.begin(), its.constant.shape.end());
  } else if (its.shape) {
    for (const Dim& dim : *its.shape) dims.push_back(dim.value);
  } else {
    return std::nullopt;
  }
  return dims;
}

bool Graph::IsRead(int index) const {
  if (value(index).wanted) return true;
  return std::ranges::any_of(nodes, [&](const Node& node) {
    return std::ranges::find(node.inputs, index) != node.inputs.end();
  });
}

std::string Graph::LabelOf(const Node& node) const {
  if (!node.name.empty()) return node.name;
  return node.op_type + " -> " + value(node.output(0)).name;
}

std::optional<std::vector<int64_t>> Integers(const Value& value) {
  const Tensor& constant = value.constant;
  const bool is_list = constant.type == DataType::kInt64 && constant.shape.size() == 1;
  if (!is_list || constant.data == nullptr) return std::nullopt;
  const auto* first = constant.as<int64_t>();
  return std::vector(first, first + constant.bytes / int64_t{sizeof(int64_t)});
}

const char* TypeName(int64_t type) {
  static constexpr const char* kNames[] = {
      "of unknown type", "FLOAT",    "UINT8",        "INT8",           "UINT16",
      "INT16",           "INT32",    "INT64",        "STRING",         "BOOL",
      "FLOAT16",         "DOUBLE",   "UINT32",       "UINT64",         "COMPLEX64",
      "COMPLEX128",      "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2",
      "FLOAT8E5M2FNUZ",  "UINT4",    "INT4",         "FLOAT4E2M1",     "FLOAT8E8M0"};
  const bool known = type >= 0 && type < static_cast<int64_t>(std::size(kNames));
  return known ? kNames[type] : "of another type";
}

bool SameShape(const Value& a, const Value& b) {
  if (!a.shape || !b.shape) return false;
  const auto same = [](const Dim& x, const Dim& y) {
    return x.value >= 0 ? x.value == y.value : y.value < 0 && !x.name.empty() && x.name == y.name;
  };
  return std::ranges::equal(*a.shape, *b.shape, same);
}

}  // namespace ort_aie::graph
