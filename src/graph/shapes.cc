#include "graph/shapes.h"

#include <utility>

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

}  // namespace

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
    if (!value.shape) value.shape = inferred.dims;
  });
}

}  // namespace ort_aie::graph
