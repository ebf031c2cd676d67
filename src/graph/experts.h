// com.microsoft.QMoE as aie.Q4NXMoE: why not, or the attributes, and where its weights are. Both
// doors ask here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "ops/recipe.h"
#include "q4nx/experts.h"

namespace ort_aie::graph {

// A constant input of Q4NXMoE, made from inputs of the QMoE.
struct ExpertConstant {
  const char* name;  // as in ops/moe.cc
  // Inputs of the QMoE by position: the codes or the bias; kAbsent if there is none.
  int source = kAbsent, scales = kAbsent, zero_points = kAbsent;
  q4nx::ExpertLayout layout = {};  // of a bias: source_rows, first, step and n
  bool is_bias() const { return scales == kAbsent; }
};

struct Experts {
  std::string why_not;  // the rest is filled in if this is empty
  int64_t count = 0;
  Recipe::Step step = {};  // only its attributes
  // W_gate, W_down, W_up, bias_gate, bias_up, bias_down, in the order of Q4NXMoE's inputs from the
  // third on.
  std::vector<std::optional<ExpertConstant>> constants = {};
};

inline constexpr size_t kRouterWeightsInput = 14;  // of QMoE

Experts ReadExperts(const Graph& graph, const Node& node);

// Type and shape of the constant that becomes an input of Q4NXMoE.
Tensor ExpertTensor(const Experts& experts, const ExpertConstant& constant);

}  // namespace ort_aie::graph
