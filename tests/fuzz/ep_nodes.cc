// Nodes of a model that the execution provider claims: MatMulNBits, GatherBlockQuantized,
// GroupQueryAttention and the nodes between them, as regions that are fused, packed and run.
//
// An input is a list of nodes, separated by lines "--". A node starts with its operator's name on a
// separate line, with a dot before it for ONNX's own domain. Then come lines "int NAME VALUE",
// "float NAME VALUE", "text NAME VALUE", and in order "input NAME TENSOR" or "constant NAME TENSOR"
// (ReadTensor; without the tensor if an earlier node has it), "value NAME", the output of an
// earlier node, "absent", and "output NAME TYPE" or "output NAME TYPE RANK DIM..." if the shape is
// known.
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "runtime.h"

namespace {

using namespace ort_aie;

using Tensors = std::map<std::string, std::shared_ptr<OrtValue>>;

std::shared_ptr<OrtValue> Named(const std::string& name, std::istream& words, Tensors& tensors) {
  const auto known = tensors.find(name);
  if (known != tensors.end()) return known->second;
  const auto tensor = fuzz::ReadTensor(words);
  if (tensor != nullptr) tensors[name] = tensor;
  return tensor;
}

const OrtValueInfo* Output(const std::vector<OrtNode>& nodes, const std::string& name) {
  for (const OrtNode& node : nodes) {
    for (const OrtValueInfo& output : node.outputs) {
      if (output.name == name) return &output;
    }
  }
  return nullptr;
}

// False for a line that does not describe the last node.
bool ReadLine(const std::string& line, std::vector<OrtNode>& nodes, Tensors& feeds,
              Tensors& constants) {
  OrtNode& node = nodes.back();
  std::istringstream words(line);
  std::string key, name;
  words >> key;
  if (key == "absent") {
    node.inputs.emplace_back();
    return node.inputs.size() < 32;
  }
  words >> name;
  if (name.empty()) return false;
  if (key == "int") {
    int64_t value = 0;
    if (!(words >> value)) return false;
    node.attributes[name] = {value};
  } else if (key == "float") {
    float value = 0;
    if (!(words >> value)) return false;
    node.attributes[name] = {value};
  } else if (key == "text") {
    std::string value;
    words >> value;
    node.attributes[name] = {value};
  } else if (key == "input" || key == "constant") {
    const bool is_constant = key == "constant";
    if ((is_constant ? feeds : constants).contains(name) || node.inputs.size() == 32 ||
        Output(nodes, name) != nullptr) {
      return false;
    }
    const auto tensor = Named(name, words, is_constant ? constants : feeds);
    if (tensor == nullptr) return false;
    node.inputs.push_back({name, {tensor->info}, is_constant ? tensor : nullptr});
  } else if (key == "value") {
    const OrtValueInfo* output = Output(nodes, name);
    if (output == nullptr || node.inputs.size() == 32) return false;
    node.inputs.push_back(*output);
  } else if (key == "output") {
    int type = 0;
    const bool good = words >> type && type >= 0 && type <= ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    // A graph writes each value only once.
    if (!good || node.outputs.size() == 8 || Output(nodes, name) != nullptr ||
        feeds.contains(name) || constants.contains(name)) {
      return false;
    }
    OrtTensorTypeAndShapeInfo info{static_cast<ONNXTensorElementDataType>(type), {}, false};
    size_t rank = 0;
    if (words >> rank) {
      if (rank > 8) return false;
      info.has_shape = true;
      info.shape.resize(rank, -1);
      for (int64_t& dim : info.shape) words >> dim;
    }
    node.outputs.push_back({name, {info}, nullptr});
  } else {
    return false;
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  std::vector<OrtNode> nodes;
  Tensors feeds, constants;
  bool begins = true;
  for (std::string line; std::getline(lines, line);) {
    if (line == "--") {
      begins = true;
    } else if (begins) {
      if (nodes.size() == 16) return -1;
      begins = false;
      nodes.emplace_back();
      nodes.back().name = "node" + std::to_string(nodes.size());
      const bool own = line.starts_with('.');
      nodes.back().domain = own ? "" : "com.microsoft";
      nodes.back().op_type = own ? line.substr(1) : line;
    } else if (!ReadLine(line, nodes, feeds, constants)) {
      return -1;
    }
  }
  fuzz::RunSession("", nodes, feeds, {{"target", "host"}});
  return 0;
}
