#include "graph/shapes.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/size.h"

namespace ort_aie::graph {
namespace {

// An op cannot tell rank 0 from an unknown rank: both have no dimensions.
std::optional<ShapeContext::Value> Known(const Value& value) {
  if (value.constant) {
    ShapeContext::Value known{NumberOf(value.constant.type)};
    for (const int64_t dim : value.constant.shape) known.dims.push_back({dim});
    return known;
  }
  if (value.type == 0 || !value.shape) return std::nullopt;
  return ShapeContext::Value{value.type, *value.shape};
}

void Fill(Value& value, const std::vector<Dim>& inferred) {
  if (!value.shape) value.shape = inferred;
  if (value.shape->size() != inferred.size()) return;
  for (size_t i = 0; i < inferred.size(); ++i) {
    if ((*value.shape)[i].value < 0 && inferred[i].value >= 0) (*value.shape)[i] = inferred[i];
  }
}

// The dimensions of `source` in other sizes, of which one may be -1; none if they are not known.
std::optional<std::vector<Dim>> Reshaped(const std::vector<Dim>& source,
                                         std::span<const int64_t> sizes) {
  std::vector<Dim> result;
  Size others = 1, rest = 1;  // of the sizes, and of the dimensions that they replace
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < -1 || (sizes[i] == 0 && i >= source.size())) return std::nullopt;
    result.push_back(sizes[i] == 0 ? source[i] : Dim{sizes[i]});
    if (sizes[i] > 0) others = others * sizes[i];
  }
  const auto open = std::ranges::find(sizes, -1);
  if (open == sizes.end()) return result;
  for (size_t i = 0; i < source.size(); ++i) {
    if (i < sizes.size() && sizes[i] == 0) continue;
    if (source[i].value < 1) return std::nullopt;
    rest = rest * source[i].value;
  }
  if (!rest.InRange() || !others.InRange()) return std::nullopt;
  const int64_t all = rest.As("a dimension"), given = others.As("a dimension");
  if (all % given != 0) return std::nullopt;
  result[static_cast<size_t>(open - sizes.begin())] = {all / given};
  return result;
}

}  // namespace

void InferReshape(Graph& graph, const Node& node) {
  if (!node.Is("", "Reshape") || node.Int("allowzero", 0) != 0) return;
  const auto source = Known(graph.value(node.input(0)));
  const Tensor& sizes = graph.value(node.input(1)).constant;
  if (!source || node.output(0) == kAbsent) return;
  const bool is_list = sizes.type == DataType::kInt64 && sizes.shape.size() == 1;
  if (!is_list || sizes.data == nullptr) return;
  const auto count = static_cast<size_t>(sizes.bytes) / sizeof(int64_t);
  const auto inferred = Reshaped(source->dims, {sizes.as<int64_t>(), count});
  if (!inferred) return;
  Value& value = graph.values[static_cast<size_t>(node.output(0))];
  if (value.type == 0) value.type = source->type;
  Fill(value, *inferred);
}

void InferShapes(Graph& graph, const Recipe::Step& step) {
  const OpDescription* op = FindOp(step.op);
  if (op == nullptr) return;
  const auto known = [&](int value) { return Known(graph.value(value)); };
  for (size_t i = 0; i < op->required_inputs; ++i) {
    if (!known(step.reads[i])) return;
  }
  InferStep(step, known, [&](int index, const ShapeContext::Value& inferred) {
    Value& value = graph.values[static_cast<size_t>(index)];
    if (value.type == 0) value.type = inferred.type;
    Fill(value, inferred.dims);
  });
}

}  // namespace ort_aie::graph
