// ONNX Runtime's graphs as plain data (graph/graph.h). The data points into ONNX Runtime's memory,
// and is valid as long as the graph.
#pragma once

#include <onnxruntime_c_api.h>

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "ort/api.h"

namespace ort_aie::ep {

struct ReadGraph {
  // Nodes in topological order; where that leaves a choice, in the order of the model's file.
  // Values that their bodies read from the graph are inputs of the nodes, after the others.
  graph::Graph graph;
  // By node of the graph.
  std::vector<const OrtNode*> nodes;
  std::vector<size_t> ids;
  // By value of the graph.
  std::vector<const OrtValueInfo*> values;
  std::map<std::string, int> value_of;  // by name
};

ReadGraph Read(const OrtApi* api, const OrtGraph* graph);

// Branches and bodies of a control flow node.
std::vector<const OrtGraph*> BodiesOf(const OrtApi* api, const OrtNode* node);

// The node that ONNX Runtime makes of claimed ones, with its inputs and outputs by name.
struct FusedNode {
  std::string name;
  std::vector<std::string> inputs, outputs;

  // Where a call finds a value, or IoMap::kAbsent.
  static int Position(const std::vector<std::string>& names, const std::string& name);
};
FusedNode ReadFused(const OrtApi* api, const OrtNode* node);

}  // namespace ort_aie::ep
