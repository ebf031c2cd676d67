#include "graph/graph.h"

#include <algorithm>

namespace ort_aie::graph {
namespace {

template <typename T>
const T* Find(const Node& node, std::string_view attribute) {
  const auto found = node.attributes.find(attribute);
  return found != node.attributes.end() ? std::get_if<T>(&found->second) : nullptr;
}

}  // namespace

int64_t Node::Int(std::string_view attribute, int64_t fallback) const {
  const auto* found = Find<int64_t>(*this, attribute);
  return found != nullptr ? *found : fallback;
}

float Node::Float(std::string_view attribute, float fallback) const {
  const auto* found = Find<float>(*this, attribute);
  return found != nullptr ? *found : fallback;
}

std::string Node::String(std::string_view attribute, const char* fallback) const {
  const auto* found = Find<std::string>(*this, attribute);
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

std::string Graph::LabelOf(const Node& node) const {
  if (!node.name.empty()) return node.name;
  return node.op_type + " -> " + value(node.output(0)).name;
}

const char* TypeName(int64_t type) {
  switch (type) {
    case 0:
      return "of unknown type";
    case kOnnxFloat:
      return "FLOAT";
    case kOnnxFloat16:
      return "FLOAT16";
    case kOnnxBfloat16:
      return "BFLOAT16";
    case kOnnxUint8:
      return "UINT8";
    case kOnnxInt8:
      return "INT8";
    default:
      return "of another type";
  }
}

bool SameShape(const Value& a, const Value& b) {
  if (!a.shape || !b.shape) return false;
  const auto same = [](const Dim& x, const Dim& y) {
    return x.value >= 0 ? x.value == y.value : y.value < 0 && !x.name.empty() && x.name == y.name;
  };
  return std::ranges::equal(*a.shape, *b.shape, same);
}

}  // namespace ort_aie::graph
