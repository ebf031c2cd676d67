#include "ort/ep/claimed.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "graph/claims.h"
#include "graph/experts.h"
#include "graph/fusions.h"

namespace ort_aie::ep {
namespace {

using graph::Steps;
using graph::Value;

MatMulWeights WeightsOf(const Steps& steps, const Value& packed) {
  const graph::Graph& graph = steps.graph();
  const graph::Node& matmul = graph.nodes[static_cast<size_t>(packed.packed_from)];
  const auto name = [&](size_t input) { return graph.value(matmul.input(input)).name; };
  return {.b = name(1),
          .scales = name(2),
          .zero_points = name(3),
          .n = matmul.Int("N", 0),
          .k = matmul.Int("K", 0),
          .bits = matmul.Int("bits", 4),
          .block_size = matmul.Int("block_size", 0),
          .form = packed.packed_form};
}

ExpertPart ExpertsOf(const Steps& steps, const Value& packed) {
  const graph::Graph& graph = steps.graph();
  const graph::Node& node = graph.nodes[static_cast<size_t>(packed.packed_from)];
  const graph::Experts experts = graph::ReadExperts(graph, node);
  const graph::ExpertConstant& part =
      experts.constants[static_cast<size_t>(packed.packed_part)].value();
  const auto name = [&](int input) -> std::string {
    return input == graph::kAbsent ? "" : graph.value(node.input(static_cast<size_t>(input))).name;
  };
  return {.source = name(part.source),
          .scales = name(part.scales),
          .zero_points = name(part.zero_points),
          .experts = experts.count,
          .layout = part.layout};
}

ClaimedRegion Named(const Steps& steps, graph::Region region, const std::vector<size_t>& ids) {
  ClaimedRegion claimed;
  for (const int item : region.items) {
    for (const int node : steps.items()[static_cast<size_t>(item)].nodes) {
      claimed.nodes.push_back(ids[static_cast<size_t>(node)]);
    }
  }
  std::ranges::sort(claimed.nodes);
  const size_t inputs = region.inputs.size() - region.constants;
  claimed.recipe = std::move(region.recipe);
  claimed.recipe.inputs = static_cast<int>(inputs);
  for (size_t i = 0; i < region.inputs.size(); ++i) {
    const Value& value = steps.value(region.inputs[i]);
    if (i < inputs) {
      claimed.inputs.push_back(value.name);
      continue;
    }
    const Tensor& constant = value.constant;
    claimed.recipe.constants.push_back({constant.type, constant.shape, {0, constant.bytes}});
    ClaimedRegion::Constant& its = claimed.constants.emplace_back(value.name);
    if (value.packed_part != graph::kAbsent) {
      its.experts = ExpertsOf(steps, value);
    } else if (value.packed_from != graph::kAbsent) {
      its.weights = WeightsOf(steps, value);
    }
  }
  for (const int value : region.outputs) claimed.outputs.push_back(steps.value(value).name);
  return claimed;
}

// The nodes that read an embedding through this Reshape of what a projection shares, if nothing
// else reads its result. Claims see through it.
std::vector<size_t> GathersBehind(const graph::Graph& graph, const graph::Node& reshape) {
  const int result = reshape.output(0);
  if (!reshape.Is("", "Reshape") || !graph.value(reshape.input(0)).constant ||
      graph.value(result).wanted) {
    return {};
  }
  std::vector<size_t> gathers;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const graph::Node& reader = graph.nodes[i];
    const auto times = std::ranges::count(reader.inputs, result);
    if (times == 0) continue;
    if (times != 1 || reader.input(0) != result ||
        !reader.Is("com.microsoft", "GatherBlockQuantized")) {
      return {};
    }
    gathers.push_back(i);
  }
  return gathers;
}

// The names of initializers that a node reads and the session replaces, for a message; empty: none.
std::string ReplacedOf(const graph::Graph& graph, const graph::Node& node,
                       const std::set<std::string>& replaced) {
  std::string names;
  for (const int input : node.inputs) {
    const std::string& name = graph.value(input).name;
    if (replaced.contains(name)) names += Concat(names.empty() ? "" : ", ", "'", name, "'");
  }
  return names;
}

// Why a node with blocked weights for a MatMul stays with ONNX Runtime; empty for other nodes.
std::string WhyNotDequantized(const graph::Graph& graph, const graph::Node& node) {
  if (!node.Is("", "DequantizeLinear") || node.Int("block_size", 0) == 0) return "";
  const bool multiplied = std::ranges::any_of(graph.nodes, [&](const graph::Node& reader) {
    return reader.Is("", "MatMul") && reader.input(1) == node.output(0);
  });
  if (!multiplied) return "";
  return "ONNX Runtime merges it with the MatMul after it into a MatMulNBits, but only after it "
         "has asked the provider; ort-aie compile packs such weights";
}

}  // namespace

Claims Claim(graph::Graph graph, const std::vector<size_t>& ids,
             const std::set<std::string>& replaced, graph::Grouping grouping) {
  Claims claims;
  for (graph::Node& node : graph.nodes) {
    const std::string names = ReplacedOf(graph, node, replaced);
    if (!names.empty()) {
      claims.left.push_back({graph.LabelOf(node), Concat("the session options replace ", names,
                                                         " (add_initializer), and the provider "
                                                         "cannot read the new value")});
    }
    // The nodes of a compiled model are custom ops, and ONNX Runtime maps their weights. They stay
    // custom ops.
    if (!names.empty() || node.domain == "aie") node.op_type.clear();
  }
  for (const graph::Node& node : graph.nodes) {
    if (std::string why = WhyNotDequantized(graph, node); !why.empty()) {
      claims.left.push_back({graph.LabelOf(node), std::move(why)});
    }
  }
  Steps steps = graph::ClaimSteps(std::move(graph), /*sources=*/true);
  graph::FuseAll(steps);
  graph::TakeMoves(steps);
  for (const graph::Item& item : steps.items()) {
    if (!item.why_not.empty()) claims.left.push_back({item.step.name, item.why_not});
  }
  std::map<size_t, std::vector<size_t>> gathers_of;  // of a Reshape
  for (size_t i = 0; i < steps.graph().nodes.size(); ++i) {
    std::vector<size_t> gathers = GathersBehind(steps.graph(), steps.graph().nodes[i]);
    if (!gathers.empty()) gathers_of[i] = std::move(gathers);
  }
  for (graph::Region& region : graph::FindRegions(steps, grouping)) {
    ClaimedRegion& claimed = claims.regions.emplace_back(Named(steps, std::move(region), ids));
    // Takes a Reshape into the region if nothing else reads its result.
    const auto is_in = [&](size_t node) {
      return std::ranges::binary_search(claimed.nodes, ids[node]);
    };
    std::vector<size_t> reshapes;
    for (const auto& [reshape, gathers] : gathers_of) {
      if (std::ranges::all_of(gathers, is_in)) reshapes.push_back(ids[reshape]);
    }
    claimed.nodes.insert(claimed.nodes.end(), reshapes.begin(), reshapes.end());
    std::ranges::sort(claimed.nodes);
  }
  return claims;
}

}  // namespace ort_aie::ep
