#include "ort/ep/graph_reader.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace ort_aie::ep {
namespace {

// After FLOAT4E2M1, ONNX Runtime has UINT2 and INT2 before FLOAT8E8M0, and ONNX has them after it.
constexpr int64_t NumberInOnnx(int64_t type) {
  constexpr int64_t kExponents = 24, kExponentsHere = 26;
  if (type == kExponentsHere) return kExponents;
  return type >= kExponents && type < kExponentsHere ? type + 1 : type;
}

using graph::kAbsent;

// Whether a status is an error. Releases it.
bool Failed(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return false;
  api->ReleaseStatus(status);
  return true;
}

// Lists the objects that a pair of functions returns: one their number, the other the objects.
template <typename T, typename Owner, typename Count, typename Get>
std::vector<const T*> ListOf(const OrtApi* api, const Owner* owner, Count count, Get get) {
  size_t size = 0;
  Check(api, count(owner, &size));
  std::vector<const T*> list(size);
  if (size > 0) Check(api, get(owner, list.data(), size));
  return list;
}

class Reader {
 public:
  explicit Reader(const OrtApi* api) : api_(api) {}

  ReadGraph All(const OrtGraph* graph) {
    for (const OrtNode* node :
         ListOf<OrtNode>(api_, graph, api_->Graph_GetNumNodes, api_->Graph_GetNodes)) {
      ReadNode(node);
    }
    for (const OrtValueInfo* output :
         ListOf<OrtValueInfo>(api_, graph, api_->Graph_GetNumOutputs, api_->Graph_GetOutputs)) {
      const int value = ValueOf(output);
      if (value == kAbsent) continue;
      graph::Value& wanted = read_.graph.values[static_cast<size_t>(value)];
      wanted.wanted = true;
      wanted.logits = wanted.name == "logits";
    }
    Sort();
    return std::move(read_);
  }

 private:
  void ReadNode(const OrtNode* raw) {
    graph::Node node;
    const char* text = nullptr;
    Check(api_, api_->Node_GetName(raw, &text));
    node.name = text;
    Check(api_, api_->Node_GetDomain(raw, &text));
    node.domain = text;
    Check(api_, api_->Node_GetOperatorType(raw, &text));
    node.op_type = text;
    size_t id = 0;
    Check(api_, api_->Node_GetId(raw, &id));
    const auto add = [&](std::vector<int>& values, auto count, auto get) {
      for (const OrtValueInfo* info : ListOf<OrtValueInfo>(api_, raw, count, get)) {
        values.push_back(ValueOf(info));
      }
    };
    add(node.inputs, api_->Node_GetNumInputs, api_->Node_GetInputs);
    add(node.inputs, api_->Node_GetNumImplicitInputs, api_->Node_GetImplicitInputs);
    add(node.outputs, api_->Node_GetNumOutputs, api_->Node_GetOutputs);
    for (const OrtOpAttr* attribute :
         ListOf<OrtOpAttr>(api_, raw, api_->Node_GetNumAttributes, api_->Node_GetAttributes)) {
      ReadAttribute(attribute, node);
    }
    read_.graph.nodes.push_back(std::move(node));
    read_.nodes.push_back(raw);
    read_.ids.push_back(id);
  }

  // Attributes of types that no step uses are left out. A tensor of one float is a float.
  void ReadAttribute(const OrtOpAttr* attribute, graph::Node& node) const {
    const char* name = nullptr;
    OrtOpAttrType type = ORT_OP_ATTR_UNDEFINED;
    if (attribute == nullptr || Failed(api_, api_->OpAttr_GetName(attribute, &name)) ||
        Failed(api_, api_->OpAttr_GetType(attribute, &type))) {
      return;
    }
    const auto read = [&](void* data, size_t bytes) {
      size_t size = 0;
      return !Failed(api_, api_->ReadOpAttr(attribute, type, data, bytes, &size));
    };
    // The size needed: if there is no room, ONNX Runtime tells it, with or without an error.
    const auto bytes_of = [&] {
      size_t size = 0;
      Failed(api_, api_->ReadOpAttr(attribute, type, nullptr, 0, &size));
      return size;
    };
    if (type == ORT_OP_ATTR_INT) {
      int64_t number = 0;
      if (read(&number, sizeof(number))) node.attributes[name] = number;
    } else if (type == ORT_OP_ATTR_FLOAT) {
      float number = 0;
      if (read(&number, sizeof(number))) node.attributes[name] = number;
    } else if (type == ORT_OP_ATTR_STRING) {
      std::string value(bytes_of(), '\0');
      if (!value.empty() && !read(value.data(), value.size())) return;
      while (!value.empty() && value.back() == '\0') value.pop_back();
      node.attributes[name] = value;
    } else if (type == ORT_OP_ATTR_INTS) {
      std::vector<int64_t> numbers(bytes_of() / sizeof(int64_t));
      if (numbers.empty() || read(numbers.data(), numbers.size() * sizeof(int64_t))) {
        node.attributes[name] = numbers;
      }
    } else if (type == ORT_OP_ATTR_TENSOR) {
      OrtValue* tensor = nullptr;
      if (Failed(api_, api_->OpAttr_GetTensorAttributeAsOrtValue(attribute, &tensor))) return;
      const Tensor its = DescribeConstant(api_, tensor);
      if (its.type == DataType::kFloat32 && its.bytes == sizeof(float) && its.data != nullptr) {
        node.attributes[name] = *its.as<float>();
      }
      api_->ReleaseValue(tensor);
    }
  }

  int ValueOf(const OrtValueInfo* info) {
    if (info == nullptr) return kAbsent;  // left out
    const char* name = nullptr;
    Check(api_, api_->GetValueInfoName(info, &name));
    if (*name == '\0') return kAbsent;
    const auto [known, is_new] =
        read_.value_of.try_emplace(name, static_cast<int>(read_.graph.values.size()));
    if (is_new) {
      read_.graph.values.push_back(Describe(info, name));
      read_.values.push_back(info);
    }
    return known->second;
  }

  graph::Value Describe(const OrtValueInfo* info, const char* name) const {
    graph::Value value;
    value.name = name;
    const OrtTypeInfo* type = nullptr;
    const OrtTensorTypeAndShapeInfo* tensor = nullptr;
    ONNXTensorElementDataType element = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
    if (!Failed(api_, api_->GetValueInfoTypeInfo(info, &type)) && type != nullptr &&
        !Failed(api_, api_->CastTypeInfoToTensorInfo(type, &tensor)) && tensor != nullptr &&
        !Failed(api_, api_->GetTensorElementType(tensor, &element))) {
      value.type = NumberInOnnx(element);
      if (api_->TensorTypeAndShape_HasShape(tensor)) value.shape = ShapeOf(tensor);
    }
    value.constant = ConstantOf(info);
    return value;
  }

  std::optional<std::vector<graph::Dim>> ShapeOf(const OrtTensorTypeAndShapeInfo* tensor) const {
    size_t rank = 0;
    if (Failed(api_, api_->GetDimensionsCount(tensor, &rank))) return std::nullopt;
    std::vector<int64_t> dims(rank);
    std::vector<const char*> names(rank);
    if (rank > 0 && (Failed(api_, api_->GetDimensions(tensor, dims.data(), rank)) ||
                     Failed(api_, api_->GetSymbolicDimensions(tensor, names.data(), rank)))) {
      return std::nullopt;
    }
    std::vector<graph::Dim> shape;
    for (size_t i = 0; i < rank; ++i) {
      shape.push_back({std::max<int64_t>(dims[i], -1), names[i] != nullptr ? names[i] : ""});
    }
    return shape;
  }

  Tensor ConstantOf(const OrtValueInfo* info) const {
    // An input with a default is not a constant, because a call may replace it.
    bool is_input = false;
    if (Failed(api_, api_->ValueInfo_IsOptionalGraphInput(info, &is_input)) || is_input) return {};
    const OrtValue* initializer = nullptr;
    if (Failed(api_, api_->ValueInfo_GetInitializerValue(info, &initializer))) return {};
    return DescribeConstant(api_, initializer);
  }

  // ONNX Runtime lists nodes in an order of its own. Of the nodes that are ready, the one that was
  // first in the file comes first, as in a compiled model.
  void Sort() {
    std::vector<graph::Node>& nodes = read_.graph.nodes;
    std::map<int, std::vector<size_t>> readers;  // by value
    std::vector<bool> is_written(read_.graph.values.size(), false);
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const int value : nodes[i].outputs) {
        if (value != kAbsent) is_written[static_cast<size_t>(value)] = true;
      }
    }
    std::vector<int> missing(nodes.size(), 0);
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (const int value : nodes[i].inputs) {
        if (value == kAbsent || !is_written[static_cast<size_t>(value)]) continue;
        readers[value].push_back(i);
        ++missing[i];
      }
    }
    using Ready = std::pair<size_t, size_t>;  // its id, and its place in the list
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (missing[i] == 0) ready.push({read_.ids[i], i});
    }
    ReadGraph sorted;
    while (!ready.empty()) {
      const size_t next = ready.top().second;
      ready.pop();
      for (const int value : nodes[next].outputs) {
        for (const size_t reader : value == kAbsent ? std::vector<size_t>{} : readers[value]) {
          if (--missing[reader] == 0) ready.push({read_.ids[reader], reader});
        }
      }
      sorted.graph.nodes.push_back(std::move(nodes[next]));
      sorted.nodes.push_back(read_.nodes[next]);
      sorted.ids.push_back(read_.ids[next]);
    }
    Require(sorted.nodes.size() == read_.nodes.size(), "the graph has a cycle");
    read_.graph.nodes = std::move(sorted.graph.nodes);
    read_.nodes = std::move(sorted.nodes);
    read_.ids = std::move(sorted.ids);
  }

  const OrtApi* api_;
  ReadGraph read_;
};

}  // namespace

ReadGraph Read(const OrtApi* api, const OrtGraph* graph) { return Reader(api).All(graph); }

std::vector<const OrtGraph*> BodiesOf(const OrtApi* api, const OrtNode* node) {
  size_t count = 0;
  Check(api, api->Node_GetNumSubgraphs(node, &count));
  std::vector<const OrtGraph*> bodies(count);
  if (count > 0) Check(api, api->Node_GetSubgraphs(node, bodies.data(), count, nullptr));
  return bodies;
}

int FusedNode::Position(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::ranges::find(names, name);
  return found != names.end() ? static_cast<int>(found - names.begin()) : IoMap::kAbsent;
}

FusedNode ReadFused(const OrtApi* api, const OrtNode* node) {
  FusedNode fused;
  const char* text = nullptr;
  Check(api, api->Node_GetName(node, &text));
  fused.name = text;
  const auto names = [&](std::vector<std::string>& to, auto count, auto get) {
    for (const OrtValueInfo* info : ListOf<OrtValueInfo>(api, node, count, get)) {
      if (info != nullptr) Check(api, api->GetValueInfoName(info, &text));
      to.emplace_back(info != nullptr ? text : "");
    }
  };
  names(fused.inputs, api->Node_GetNumInputs, api->Node_GetInputs);
  names(fused.outputs, api->Node_GetNumOutputs, api->Node_GetOutputs);
  return fused;
}

}  // namespace ort_aie::ep
