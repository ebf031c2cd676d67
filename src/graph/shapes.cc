#include "graph/shapes.h"

#include <algorithm>
#include <span>
#include <utility>

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
  } else if (node.op_type == "Transpose" && SwapsTokens(node, source->dims.size())) {
    std::vector<Dim> dims = source->dims;
    std::swap(dims[1], dims[2]);
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

bool SwapsTokens(const Node& node, size_t rank) {
  const auto perm = node.attributes.find("perm");
  if (perm == node.attributes.end() || rank < 3) return false;
  const auto* order = std::get_if<std::vector<int64_t>>(&perm->second);
  if (order == nullptr || order->size() != rank) return false;
  for (size_t i = 0; i < rank; ++i) {
    if ((*order)[i] != static_cast<int64_t>(i == 1 ? 2 : i == 2 ? 1 : i)) return false;
  }
  return true;
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
