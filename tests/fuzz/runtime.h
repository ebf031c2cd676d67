// A small ONNX Runtime: only the part of its C API that the execution provider uses, so that graphs
// of a fuzz target reach the provider as a session's would. It guarantees what ONNX Runtime itself
// guarantees (a tensor has as many bytes as its shape says, an output's shape is not negative), and
// no more.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <istream>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ort/ep/ep.h"
#include "targets/session_options.h"

// Definitions of the API's opaque types.
struct OrtTensorTypeAndShapeInfo {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<int64_t> shape;
  bool has_shape = true;
};
struct OrtTypeInfo {
  OrtTensorTypeAndShapeInfo tensor;
};
struct OrtValue {
  OrtTensorTypeAndShapeInfo info;
  std::unique_ptr<uint8_t[]> bytes;  // of exactly this size, for the sanitizer
};
struct OrtOpAttr {
  std::variant<int64_t, float, std::string> value;
  mutable std::string name = {};  // set when a node's attributes are listed
};
struct OrtValueInfo {
  std::string name;
  OrtTypeInfo type;
  std::shared_ptr<const OrtValue> initializer;
};
struct OrtNode {
  std::string name, domain, op_type;
  std::map<std::string, OrtOpAttr> attributes;
  std::vector<OrtValueInfo> inputs, outputs;  // no name: an omitted value
};
struct OrtGraph {
  std::string path;
  std::vector<const OrtNode*> nodes;
  std::vector<const OrtValueInfo*> outputs = {};
};
struct OrtKernelContext {
  std::vector<const OrtValue*> inputs;
  std::vector<OrtValue> outputs;
};

namespace ort_aie::fuzz {

const OrtApi* Api();

// "TYPE RANK DIM... VALUE...": a tensor whose elements repeat these values, or a pattern if there
// are no values. Null for invalid text, and for a tensor of more than a megabyte.
std::shared_ptr<OrtValue> ReadTensor(std::istream& text);

// A session of one provider: claims, compiles and runs the nodes of a graph, which are in
// topological order. A value that no node reads is an output of the graph; `feeds` are its inputs.
void RunSession(const std::string& model_path, const std::vector<OrtNode>& nodes,
                const std::map<std::string, std::shared_ptr<OrtValue>>& feeds,
                const ep::Settings& settings);

}  // namespace ort_aie::fuzz
