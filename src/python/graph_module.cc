#include "python/graph_module.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "graph/claims.h"
#include "graph/experts.h"
#include "graph/fusions.h"
#include "graph/regions.h"
#include "graph/steps.h"
#include "ops/recipe.h"

namespace py = pybind11;

namespace ort_aie::graph {
namespace {

using Names = std::unordered_map<std::string, int>;

Attribute AttributeOf(const std::string& node, const py::handle& name, const py::handle& value) {
  if (py::isinstance<py::int_>(value)) return value.cast<int64_t>();
  if (py::isinstance<py::float_>(value)) return value.cast<float>();
  if (py::isinstance<py::str>(value)) return value.cast<std::string>();
  Require(py::isinstance<py::list>(value), "node '", node, "': attribute ",
          name.cast<std::string>(), " must be an int, a float, a str or a list of int, got ",
          py::repr(value).cast<std::string>());
  return value.cast<std::vector<int64_t>>();
}

std::vector<int> ValuesNamed(const std::string& node, const py::handle& list, const Names& names) {
  std::vector<int> values;
  for (const py::handle& item : list) {
    const auto name = item.cast<std::string>();
    const auto found = names.find(name);
    Require(name.empty() || found != names.end(), "node '", node, "': there is no value '", name,
            "'");
    values.push_back(name.empty() ? kAbsent : found->second);
  }
  return values;
}

Node NodeOf(const py::handle& given, const Names& names) {
  Node node;
  node.name = given["name"].cast<std::string>();
  node.domain = given["domain"].cast<std::string>();
  node.op_type = given["op_type"].cast<std::string>();
  for (const auto& [name, value] : given["attributes"].cast<py::dict>()) {
    node.attributes[name.cast<std::string>()] = AttributeOf(node.name, name, value);
  }
  node.inputs = ValuesNamed(node.name, given["inputs"], names);
  node.outputs = ValuesNamed(node.name, given["outputs"], names);
  return node;
}

Dim DimOf(const py::handle& given) {
  if (given.is_none()) return {};
  if (py::isinstance<py::str>(given)) return {-1, given.cast<std::string>()};
  return {given.cast<int64_t>()};
}

Tensor ConstantOf(const Value& value, const py::handle& given) {
  Tensor constant;
  constant.type = TypeOfNumber(value.type);
  constant.present = true;
  if (value.shape) {
    for (const Dim& dim : *value.shape) constant.shape.push_back(dim.value);
  }
  const bool known =
      value.shape && std::ranges::all_of(constant.shape, [](int64_t dim) { return dim >= 0; });
  Require(known, "the shape of constant '", value.name, "' must be known");
  if (!py::isinstance<py::array>(given)) return constant;
  const auto array = given.cast<py::array>();
  const Shape actual(array.shape(), array.shape() + array.ndim());
  Require(actual == constant.shape, "constant '", value.name, "' must be ", constant.shape,
          ", got ", actual);
  Require((array.flags() & py::array::c_style) != 0, "constant '", value.name,
          "' must be a contiguous array in row-major order");
  // A model may contain types that this library does not know. Only code that knows them reads the
  // elements.
  Require(constant.type == DataType::kOther ||
              array.itemsize() == static_cast<py::ssize_t>(SizeOf(constant.type)),
          "elements of constant '", value.name, "' must have ", SizeOf(constant.type),
          " bytes, got ", array.itemsize());
  constant.data = array.data();
  constant.bytes = array.nbytes();
  return constant;
}

Value ValueOf(const py::handle& given) {
  Value value;
  value.name = given["name"].cast<std::string>();
  value.type = given["type"].cast<int64_t>();
  value.wanted = given["wanted"].cast<bool>();
  value.logits = given["logits"].cast<bool>();
  if (const py::object shape = given["shape"]; !shape.is_none()) {
    value.shape.emplace();
    for (const py::handle& dim : shape) value.shape->push_back(DimOf(dim));
  }
  if (const py::object constant = given["constant"]; !constant.is_none()) {
    value.constant = ConstantOf(value, constant);
  }
  return value;
}

py::list NamesOf(const Steps& steps, const std::vector<int>& values) {
  py::list names;
  for (const int value : values) names.append(steps.value(value).name);
  return names;
}

py::dict AttributesOf(const Recipe::Step& step) {
  py::dict attributes;
  for (const auto& [name, value] : step.ints) attributes[name.c_str()] = value;
  for (const auto& [name, value] : step.floats) attributes[name.c_str()] = value;
  for (const auto& [name, value] : step.strings) attributes[name.c_str()] = value;
  return attributes;
}

py::dict DictOf(const Steps& steps, const Item& item) {
  py::dict dict;
  py::list nodes;
  for (const int node : item.nodes) {
    nodes.append(steps.graph().nodes[static_cast<size_t>(node)].name);
  }
  dict["op"] = item.step.op;
  dict["name"] = item.step.name;
  dict["attributes"] = AttributesOf(item.step);
  dict["reads"] = NamesOf(steps, item.step.reads);
  dict["writes"] = NamesOf(steps, item.step.writes);
  dict["nodes"] = nodes;
  dict["places"] = item.nodes;
  dict["why_not"] = item.why_not;
  dict["apart"] = item.apart;
  return dict;
}

py::list ItemsOf(const Steps& steps) {
  py::list items;
  for (const Item& item : steps.items()) items.append(DictOf(steps, item));
  return items;
}

// The items that remain after all fusions, as dicts.
py::list FusedSteps(const py::list& nodes, const py::list& values) {
  Steps steps = ClaimSteps(GraphOf(nodes, values), false);
  FuseAll(steps);
  return ItemsOf(steps);
}

// The items of a graph of aie nodes, without further fusions, and their regions: one for each step
// unless `whole`; with `layers`, regions are divided into layers.
py::dict PlanGraph(const py::list& nodes, const py::list& values, bool whole, bool layers) {
  Steps steps = ClaimSteps(GraphOf(nodes, values), false);
  TakeMoves(steps);
  py::list regions;
  const auto regions_of = layers ? Grouping::kLayers : Grouping::kRegions;
  const auto grouping = whole ? regions_of : Grouping::kStepByStep;
  for (Region& region : FindRegions(steps, grouping)) {
    KeepFloat16(steps, region);
    py::dict given;
    given["items"] = region.items;
    given["inputs"] = NamesOf(steps, region.inputs);
    given["outputs"] = NamesOf(steps, region.outputs);
    given["recipe"] = ToText(region.recipe);
    regions.append(given);
  }
  py::dict plan;
  plan["items"] = ItemsOf(steps);
  plan["regions"] = regions;
  return plan;
}

py::object ConstantOf(const Experts& experts, const ExpertConstant& constant) {
  const q4nx::ExpertLayout& layout = constant.layout;
  const Tensor tensor = ExpertTensor(experts, constant);
  py::dict given;
  given["name"] = constant.name;
  given["source"] = constant.source;
  given["scales"] = constant.scales;
  given["zero_points"] = constant.zero_points;
  given["shape"] = std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end());
  given["layout"] =
      std::vector<int64_t>{layout.source_rows, layout.first,      layout.step,
                           layout.n,           layout.k,          layout.bits,
                           layout.block_size,  layout.form.group, layout.form.minima ? 1 : 0};
  return given;
}

// What the sources become. Where a step reads packed weights, `packed` has the place of the node
// whose weights they are, and which constant of a QMoE.
py::list ClaimedSources(const py::list& nodes, const py::list& values, bool q4nx_compatible) {
  Graph graph = GraphOf(nodes, values);
  if (q4nx_compatible) graph.reads_in_place = [](const WeightForm&) { return false; };
  const Steps steps = ClaimSources(std::move(graph));
  py::list claimed;
  for (const Item& item : steps.items()) {
    py::dict given = DictOf(steps, item);
    py::list packed;
    for (const int read : item.step.reads) {
      const Value& value = steps.value(read);
      if (value.packed_from == kAbsent) {
        packed.append(py::none());
        continue;
      }
      py::object constant = py::none();
      if (value.packed_part != kAbsent) {
        const Node& node = steps.graph().nodes[static_cast<size_t>(value.packed_from)];
        const Experts experts = ReadExperts(steps.graph(), node);
        constant = ConstantOf(experts, *experts.constants[static_cast<size_t>(value.packed_part)]);
      }
      packed.append(py::make_tuple(value.packed_from, constant));
    }
    given["packed"] = packed;
    given["malformed"] = item.malformed;
    claimed.append(given);
  }
  return claimed;
}

py::dict ReadRecipe(const std::string& text) {
  const Recipe recipe = PlanRecipeFrom(text);
  py::list steps;
  for (const Recipe::Step& step : recipe.steps) {
    py::dict given;
    given["op"] = step.op;
    given["name"] = step.name;
    given["attributes"] = AttributesOf(step);
    given["reads"] = step.reads;
    given["writes"] = step.writes;
    steps.append(given);
  }
  py::dict given;
  given["inputs"] = recipe.inputs;
  given["steps"] = steps;
  given["outputs"] = recipe.outputs;
  return given;
}

// (type, dims) or None -> what is known of a value. A type without dims counts as unknown, because
// shape inference of an op needs both.
std::optional<ShapeContext::Value> KnownOf(const py::handle& given) {
  if (given.is_none()) return std::nullopt;
  const auto [type, dims] = given.cast<std::pair<int64_t, py::object>>();
  if (dims.is_none()) return std::nullopt;
  ShapeContext::Value value{.type = type};
  for (const py::handle& dim : dims) value.dims.push_back(DimOf(dim));
  return value;
}

py::list InferRecipe(const std::string& text, const py::list& inputs) {
  const Recipe recipe = PlanRecipeFrom(text);
  Require(inputs.size() == static_cast<size_t>(recipe.inputs), "the recipe has ", recipe.inputs,
          " inputs, got ", inputs.size());
  std::vector<std::optional<ShapeContext::Value>> known;
  for (const py::handle& input : inputs) known.push_back(KnownOf(input));
  py::list values;
  for (const ShapeContext::Value& value : InferValues(recipe, known)) {
    py::list dims;
    for (const ShapeContext::Dim& dim : value.dims) {
      if (dim.value >= 0) {
        dims.append(dim.value);
      } else {
        dims.append(dim.name.empty() ? py::object(py::none()) : py::str(dim.name));
      }
    }
    values.append(value.type == 0 ? py::object(py::none()) : py::make_tuple(value.type, dims));
  }
  return values;
}

}  // namespace

Graph GraphOf(const py::list& nodes, const py::list& values) {
  Graph graph;
  Names names;
  for (const py::handle& value : values) {
    const Value& added = graph.values.emplace_back(ValueOf(value));
    const bool first =
        names.try_emplace(added.name, static_cast<int>(graph.values.size()) - 1).second;
    Require(first && !added.name.empty(), "there are two values '", added.name,
            "', or it has no name");
  }
  for (const py::handle& node : nodes) graph.nodes.push_back(NodeOf(node, names));
  return graph;
}

void DefineGraph(py::module_& m) {
  m.def("claimed_sources", &ClaimedSources, py::arg("nodes"), py::arg("values"),
        py::arg("q4nx_compatible"));
  m.def("fused_steps", &FusedSteps, py::arg("nodes"), py::arg("values"));
  m.def("plan_graph", &PlanGraph, py::arg("nodes"), py::arg("values"), py::arg("whole"),
        py::arg("layers") = false);
  m.def("read_recipe", &ReadRecipe, py::arg("text"));
  m.def("infer_recipe", &InferRecipe, py::arg("text"), py::arg("inputs"));
}

}  // namespace ort_aie::graph
