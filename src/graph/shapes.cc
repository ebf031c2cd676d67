#include "graph/shapes.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "ops/shape.h"
#include "ops/sizes.h"

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

}  // namespace

void InferMove(Graph& graph, const Node& node) {
  if (!node.domain.empty() || node.output(0) == kAbsent) return;
  const auto source = Known(graph.value(node.input(0)));
  if (!source) return;
  const auto set = [&](int index, const std::vector<Dim>& inferred) {
    Value& value = graph.values[static_cast<size_t>(index)];
    if (value.type == 0) value.type = source->type;
    Fill(value, inferred);
  };
  const auto sizes = Integers(graph.value(node.input(1)));
  if (node.op_type == "Reshape" && node.Int("allowzero", 0) == 0 && sizes) {
    if (const auto inferred = Reshaped(source->dims, *sizes)) set(node.output(0), *inferred);
  } else if (node.op_type == "Transpose") {
    std::vector<Dim> dims = source->dims;
    const auto axis = SwappedAxis(node, dims.size());
    if (!axis) return;
    std::swap(dims[*axis], dims[*axis + 1]);
    set(node.output(0), dims);
  } else if (node.op_type == "Split") {
    const auto rank = static_cast<int64_t>(source->dims.size());
    const int64_t given = node.Int("axis", 0), axis = given < 0 ? given + rank : given;
    if (axis < 0 || axis >= rank) return;
    const auto parts = static_cast<int64_t>(node.outputs.size());
    const int64_t whole = source->dims[static_cast<size_t>(axis)].value;
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.input(1) != kAbsent ? !sizes || sizes->size() != node.outputs.size()
                                   : node.Has("split") || whole < 1 || whole % parts != 0) {
        return;
      }
      std::vector<Dim> dims = source->dims;
      dims[static_cast<size_t>(axis)] = {sizes ? (*sizes)[i] : whole / parts};
      if (node.outputs[i] != kAbsent) set(node.outputs[i], dims);
    }
  }
}

std::optional<size_t> SwappedAxis(const Node& node, size_t rank) {
  const auto perm = node.attributes.find("perm");
  if (perm == node.attributes.end() || rank > Shape::kInPlace) return std::nullopt;
  const auto* order = std::get_if<std::vector<int64_t>>(&perm->second);
  if (order == nullptr || order->size() != rank) return std::nullopt;
  // Beyond the second axis, single elements would change places.
  for (size_t axis = 1; axis + 1 < rank && (axis == 1 || axis + 2 < rank); ++axis) {
    std::vector<int64_t> swapped(rank);
    std::iota(swapped.begin(), swapped.end(), 0);
    std::swap(swapped[axis], swapped[axis + 1]);
    if (swapped == *order) return axis;
  }
  return std::nullopt;
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
