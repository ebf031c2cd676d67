// EPContext nodes: a region's recipe as text, and the name of the file beside the model that holds
// its constants.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ort/ep/constants.h"
#include "ort/ep/context_file.h"

namespace ort_aie::ep {

// Whether this provider made the node.
bool IsContext(const graph::Node& node);

// Why ONNX Runtime cannot write a context model of a graph with these nodes; empty if it can.
std::string WhyNoContext(const RuntimeApi& runtime, const ReadGraph& graph);

// A constant of the main graph that bodies read.
struct BodyConstant {
  std::string name, node;       // and the node with the body
  std::vector<size_t> readers;  // ids of the nodes that read it themselves
};
std::vector<BodyConstant> BodyConstantsOf(const OrtApi* api, const ReadGraph& main);

// Why ONNX Runtime cannot write a context model in which the `claimed` nodes, ids in order, are no
// longer there; empty if it can.
std::string WhyNoContext(const std::vector<BodyConstant>& constants,
                         const std::vector<size_t>& claimed);

// The node that replaces `fused`. It has the inputs and outputs of the part.
OrtNode* MakeContextNode(const OrtApi* api, const FusedNode& fused, const Part& part,
                         const std::string& file, const std::string& id);

// Reads the nodes back. A file that several nodes name is mapped once.
class ContextReader {
 public:
  // `folders` may have the files, and the data files that these refer to; the first one that has a
  // file counts.
  ContextReader(std::vector<std::string> folders, WeightMemory memory)
      : folders_(std::move(folders)), memory_(memory) {}

  // The Error says what is wrong and what to do.
  Part Read(const graph::Graph& graph, const graph::Node& node);

 private:
  std::shared_ptr<const ContextFile> FileOf(const graph::Node& node);

  const std::vector<std::string> folders_;
  const WeightMemory memory_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const ContextFile>> files_;
};

}  // namespace ort_aie::ep
