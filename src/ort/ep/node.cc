#include "ort/ep/node.h"

namespace ort_aie::ep {
namespace {

const char* OnnxName(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return "FLOAT";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return "FLOAT16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return "BFLOAT16";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return "UINT8";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
      return "INT8";
    default:
      return "of another type";
  }
}

// Whether a status is an error; it is released.
bool Failed(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return false;
  api->ReleaseStatus(status);
  return true;
}

}  // namespace

Node::Node(const OrtApi* api, const OrtNode* node) : api_(api), node_(node) {
  const char* text = nullptr;
  Check(api, api->Node_GetName(node, &text));
  name_ = text;
  Check(api, api->Node_GetDomain(node, &text));
  domain_ = text;
  Check(api, api->Node_GetOperatorType(node, &text));
  op_type_ = text;
  size_t count = 0;
  Check(api, api->Node_GetNumInputs(node, &count));
  std::vector<const OrtValueInfo*> values(count);
  Check(api, api->Node_GetInputs(node, values.data(), count));
  for (const OrtValueInfo* value : values) inputs_.push_back(Describe(value));
  Check(api, api->Node_GetNumOutputs(node, &count));
  values.resize(count);
  Check(api, api->Node_GetOutputs(node, values.data(), count));
  for (const OrtValueInfo* value : values) outputs_.push_back(Describe(value));
  // As the graph passes label a node without a name.
  if (name_.empty() && !outputs_.empty()) name_ = op_type_ + " -> " + outputs_[0].name;
}

const Value& Node::At(const std::vector<Value>& values, size_t index) {
  static const Value absent;
  return index < values.size() ? values[index] : absent;
}

Value Node::Describe(const OrtValueInfo* info) const {
  Value value;
  if (info == nullptr) return value;  // left out
  const char* name = nullptr;
  Check(api_, api_->GetValueInfoName(info, &name));
  value.name = name;
  value.type = "of unknown type";
  const OrtTypeInfo* type = nullptr;
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;
  ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  if (!Failed(api_, api_->GetValueInfoTypeInfo(info, &type)) && type != nullptr &&
      !Failed(api_, api_->CastTypeInfoToTensorInfo(type, &tensor)) && tensor != nullptr &&
      !Failed(api_, api_->GetTensorElementType(tensor, &element))) {
    value.type = OnnxName(element);
    size_t rank = 0;
    if (!Failed(api_, api_->GetDimensionsCount(tensor, &rank))) {
      value.shape.resize(rank);
      if (Failed(api_, api_->GetDimensions(tensor, value.shape.data(), rank))) value.shape.clear();
    }
  }
  const OrtValue* initializer = nullptr;
  if (!Failed(api_, api_->ValueInfo_GetInitializerValue(info, &initializer))) {
    value.initializer = DescribeConstant(api_, initializer);
  }
  return value;
}

const OrtOpAttr* Node::Attribute(const char* name) const {
  const OrtOpAttr* attribute = nullptr;
  return Failed(api_, api_->Node_GetAttributeByName(node_, name, &attribute)) ? nullptr : attribute;
}

int64_t Node::Int(const char* attribute, int64_t fallback) const {
  const OrtOpAttr* attr = Attribute(attribute);
  int64_t value = fallback;
  size_t size = 0;
  if (attr == nullptr ||
      Failed(api_, api_->ReadOpAttr(attr, ORT_OP_ATTR_INT, &value, sizeof(value), &size))) {
    return fallback;
  }
  return value;
}

float Node::Float(const char* attribute, float fallback) const {
  const OrtOpAttr* attr = Attribute(attribute);
  float value = fallback;
  size_t size = 0;
  if (attr == nullptr ||
      Failed(api_, api_->ReadOpAttr(attr, ORT_OP_ATTR_FLOAT, &value, sizeof(value), &size))) {
    return fallback;
  }
  return value;
}

std::string Node::String(const char* attribute, const char* fallback) const {
  const OrtOpAttr* attr = Attribute(attribute);
  if (attr == nullptr) return fallback;
  std::string value(256, '\0');
  size_t size = 0;
  OrtStatus* status = api_->ReadOpAttr(attr, ORT_OP_ATTR_STRING, value.data(), value.size(), &size);
  if (status != nullptr && size > value.size()) {  // size is now what it takes
    api_->ReleaseStatus(status);
    value.resize(size);
    status = api_->ReadOpAttr(attr, ORT_OP_ATTR_STRING, value.data(), value.size(), &size);
  }
  if (Failed(api_, status)) return fallback;
  value.resize(size);
  while (!value.empty() && value.back() == '\0') value.pop_back();
  return value;
}

std::vector<const OrtGraph*> Node::Bodies() const {
  size_t count = 0;
  Check(api_, api_->Node_GetNumSubgraphs(node_, &count));
  std::vector<const OrtGraph*> bodies(count);
  if (count > 0) Check(api_, api_->Node_GetSubgraphs(node_, bodies.data(), count, nullptr));
  return bodies;
}

std::vector<Node> NodesOf(const OrtApi* api, const OrtGraph* graph) {
  size_t count = 0;
  Check(api, api->Graph_GetNumNodes(graph, &count));
  std::vector<const OrtNode*> raw(count);
  Check(api, api->Graph_GetNodes(graph, raw.data(), count));
  std::vector<Node> nodes;
  for (const OrtNode* node : raw) nodes.emplace_back(api, node);
  return nodes;
}

}  // namespace ort_aie::ep
