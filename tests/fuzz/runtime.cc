#include "runtime.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <set>

#include "base/error.h"

struct OrtStatus {
  OrtErrorCode code;
  std::string message;
};
struct OrtEpGraphSupportInfo {
  struct Group {
    std::vector<const OrtNode*> nodes;
    bool drop_constants;
  };
  std::vector<Group> groups;
};

namespace ort_aie::fuzz {
namespace {

constexpr int64_t kMostBytes = 1 << 20;         // of a tensor in a graph
constexpr int64_t kMostOutputBytes = 64 << 20;  // no memory for more

OrtStatus* Fault(OrtErrorCode code, const std::string& message) {
  return new OrtStatus{code, message};
}

int64_t BytesOf(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return 4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return 2;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return 8;
    default:
      return 1;
  }
}

// The size of a tensor; -1 for a shape that no tensor has, or one above `most`.
int64_t ByteCountOf(const OrtTensorTypeAndShapeInfo& info, int64_t most) {
  int64_t bytes = BytesOf(info.type);
  bool empty = false;
  for (const int64_t dim : info.shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes)) return -1;
    empty = empty || dim == 0;
  }
  if (empty) return 0;
  return bytes <= most ? bytes : -1;
}

void Fill(OrtValue& tensor, int64_t bytes, const std::vector<double>& values) {
  const int64_t step = BytesOf(tensor.info.type);
  for (int64_t i = 0; i * step < bytes; ++i) {
    const double value = values.empty() ? static_cast<double>(i * 37 % 251)
                                        : values[static_cast<size_t>(i) % values.size()];
    const auto store = [&](auto element) {
      std::memcpy(tensor.bytes.get() + i * step, &element, sizeof(element));
    };
    const auto whole = static_cast<int64_t>(std::clamp(value, -9e18, 9e18));
    switch (tensor.info.type) {
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
        store(static_cast<float>(value));
        break;
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
        store(value);
        break;
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
        store(static_cast<int32_t>(static_cast<uint32_t>(whole)));
        break;
      case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
        store(whole);
        break;
      default:  // 16-bit floats and bytes: every pattern is a valid value
        if (step == 2) {
          store(static_cast<uint16_t>(whole));
        } else {
          store(static_cast<uint8_t>(whole));
        }
    }
  }
}

OrtApi MakeApi() {
  OrtApi api{};
  // --- statuses
  api.CreateStatus = [](OrtErrorCode code, const char* message) noexcept {
    return Fault(code, message);
  };
  api.GetErrorCode = [](const OrtStatus* status) noexcept { return status->code; };
  api.GetErrorMessage = [](const OrtStatus* status) noexcept { return status->message.c_str(); };
  api.ReleaseStatus = [](OrtStatus* status) noexcept { delete status; };
  api.Logger_LogMessage = [](const OrtLogger*, OrtLoggingLevel, const char*, const char*, int,
                             const char*) noexcept -> OrtStatus* { return nullptr; };

  // --- values
  api.GetTensorTypeAndShape = [](const OrtValue* value,
                                 OrtTensorTypeAndShapeInfo** info) noexcept -> OrtStatus* {
    *info = new OrtTensorTypeAndShapeInfo(value->info);
    return nullptr;
  };
  api.GetTensorElementTypeAndShapeDataReference =
      [](const OrtValue* value, ONNXTensorElementDataType* type, const int64_t** dims,
         size_t* count) noexcept -> OrtStatus* {
    *type = value->info.type;
    *dims = value->info.shape.data();
    *count = value->info.shape.size();
    return nullptr;
  };
  api.ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo* info) noexcept { delete info; };
  api.GetTensorElementType = [](const OrtTensorTypeAndShapeInfo* info,
                                ONNXTensorElementDataType* type) noexcept -> OrtStatus* {
    *type = info->type;
    return nullptr;
  };
  api.GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info,
                              size_t* count) noexcept -> OrtStatus* {
    *count = info->shape.size();
    return nullptr;
  };
  api.GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, int64_t* dims,
                         size_t count) noexcept -> OrtStatus* {
    std::copy_n(info->shape.begin(), std::min(count, info->shape.size()), dims);
    return nullptr;
  };
  api.GetSymbolicDimensions = [](const OrtTensorTypeAndShapeInfo*, const char** names,
                                 size_t count) noexcept -> OrtStatus* {
    std::fill_n(names, count, "");
    return nullptr;
  };
  api.TensorTypeAndShape_HasShape = [](const OrtTensorTypeAndShapeInfo* info) noexcept {
    return info->has_shape;
  };
  api.GetTensorMutableData = [](OrtValue* value, void** data) noexcept -> OrtStatus* {
    *data = value->bytes.get();
    return nullptr;
  };

  api.GetTensorSizeInBytes = [](const OrtValue* value, size_t* bytes) noexcept -> OrtStatus* {
    *bytes = static_cast<size_t>(ByteCountOf(value->info, kMostOutputBytes));
    return nullptr;
  };

  // --- graphs
  api.Graph_GetModelPath = [](const OrtGraph* graph, const char** path) noexcept -> OrtStatus* {
    *path = graph->path.c_str();
    return nullptr;
  };
  api.Graph_GetNumNodes = [](const OrtGraph* graph, size_t* count) noexcept -> OrtStatus* {
    *count = graph->nodes.size();
    return nullptr;
  };
  api.Graph_GetNodes = [](const OrtGraph* graph, const OrtNode** nodes,
                          size_t count) noexcept -> OrtStatus* {
    std::copy_n(graph->nodes.begin(), count, nodes);
    return nullptr;
  };
  api.Graph_GetNumOutputs = [](const OrtGraph* graph, size_t* count) noexcept -> OrtStatus* {
    *count = graph->outputs.size();
    return nullptr;
  };
  api.Graph_GetOutputs = [](const OrtGraph* graph, const OrtValueInfo** outputs,
                            size_t count) noexcept -> OrtStatus* {
    std::copy_n(graph->outputs.begin(), count, outputs);
    return nullptr;
  };
  api.Node_GetId = [](const OrtNode* node, size_t* id) noexcept -> OrtStatus* {
    *id = reinterpret_cast<size_t>(node);  // the nodes of a graph are in this order
    return nullptr;
  };
  api.Node_GetName = [](const OrtNode* node, const char** name) noexcept -> OrtStatus* {
    *name = node->name.c_str();
    return nullptr;
  };
  api.Node_GetDomain = [](const OrtNode* node, const char** domain) noexcept -> OrtStatus* {
    *domain = node->domain.c_str();
    return nullptr;
  };
  api.Node_GetOperatorType = [](const OrtNode* node, const char** type) noexcept -> OrtStatus* {
    *type = node->op_type.c_str();
    return nullptr;
  };
  api.Node_GetEpName = [](const OrtNode*, const char** name) noexcept -> OrtStatus* {
    *name = nullptr;
    return nullptr;
  };
  api.Node_GetNumInputs = [](const OrtNode* node, size_t* count) noexcept -> OrtStatus* {
    *count = node->inputs.size();
    return nullptr;
  };
  api.Node_GetNumOutputs = [](const OrtNode* node, size_t* count) noexcept -> OrtStatus* {
    *count = node->outputs.size();
    return nullptr;
  };
  static const auto list = [](const std::vector<OrtValueInfo>& from, const OrtValueInfo** to,
                              size_t count) {
    for (size_t i = 0; i < count; ++i) to[i] = from[i].name.empty() ? nullptr : &from[i];
  };
  api.Node_GetInputs = [](const OrtNode* node, const OrtValueInfo** inputs,
                          size_t count) noexcept -> OrtStatus* {
    list(node->inputs, inputs, count);
    return nullptr;
  };
  api.Node_GetOutputs = [](const OrtNode* node, const OrtValueInfo** outputs,
                           size_t count) noexcept -> OrtStatus* {
    list(node->outputs, outputs, count);
    return nullptr;
  };
  api.Node_GetNumImplicitInputs = [](const OrtNode*, size_t* count) noexcept -> OrtStatus* {
    *count = 0;  // control-flow bodies are not supported
    return nullptr;
  };
  api.Node_GetNumAttributes = [](const OrtNode* node, size_t* count) noexcept -> OrtStatus* {
    *count = node->attributes.size();
    return nullptr;
  };
  api.Node_GetAttributes = [](const OrtNode* node, const OrtOpAttr** attributes,
                              size_t count) noexcept -> OrtStatus* {
    for (const auto& [name, attribute] : node->attributes) {
      if (count-- == 0) break;
      attribute.name = name;
      *attributes++ = &attribute;
    }
    return nullptr;
  };
  api.OpAttr_GetName = [](const OrtOpAttr* attribute, const char** name) noexcept -> OrtStatus* {
    *name = attribute->name.c_str();
    return nullptr;
  };
  api.OpAttr_GetType = [](const OrtOpAttr* attribute, OrtOpAttrType* type) noexcept -> OrtStatus* {
    constexpr OrtOpAttrType kTypes[] = {ORT_OP_ATTR_INT, ORT_OP_ATTR_FLOAT, ORT_OP_ATTR_STRING};
    *type = kTypes[attribute->value.index()];
    return nullptr;
  };
  api.ReadOpAttr = [](const OrtOpAttr* attribute, OrtOpAttrType type, void* data, size_t size,
                      size_t* needed) noexcept -> OrtStatus* {
    const auto give = [&](const void* from, size_t bytes) -> OrtStatus* {
      *needed = bytes;
      if (bytes > size) return Fault(ORT_INVALID_ARGUMENT, "the buffer is too small");
      if (bytes > 0) std::memcpy(data, from, bytes);
      return nullptr;
    };
    const auto* number = std::get_if<int64_t>(&attribute->value);
    if (number != nullptr && type == ORT_OP_ATTR_INT) return give(number, sizeof(*number));
    const auto* real = std::get_if<float>(&attribute->value);
    if (real != nullptr && type == ORT_OP_ATTR_FLOAT) return give(real, sizeof(*real));
    const auto* text = std::get_if<std::string>(&attribute->value);
    if (text != nullptr && type == ORT_OP_ATTR_STRING) return give(text->data(), text->size());
    return Fault(ORT_INVALID_ARGUMENT, "the attribute has another type");
  };
  api.GetValueInfoName = [](const OrtValueInfo* value, const char** name) noexcept -> OrtStatus* {
    *name = value->name.c_str();
    return nullptr;
  };
  api.GetValueInfoTypeInfo = [](const OrtValueInfo* value,
                                const OrtTypeInfo** type) noexcept -> OrtStatus* {
    *type = &value->type;
    return nullptr;
  };
  api.CastTypeInfoToTensorInfo =
      [](const OrtTypeInfo* type, const OrtTensorTypeAndShapeInfo** tensor) noexcept -> OrtStatus* {
    *tensor = &type->tensor;
    return nullptr;
  };
  api.ValueInfo_GetInitializerValue = [](const OrtValueInfo* value,
                                         const OrtValue** initializer) noexcept -> OrtStatus* {
    *initializer = value->initializer.get();
    return nullptr;
  };
  api.ValueInfo_IsOptionalGraphInput = [](const OrtValueInfo*, bool* is) noexcept -> OrtStatus* {
    *is = false;
    return nullptr;
  };
  api.ValueInfo_GetExternalInitializerInfo =
      [](const OrtValueInfo*, OrtExternalInitializerInfo** info) noexcept -> OrtStatus* {
    *info = nullptr;
    return nullptr;
  };
  // A session that replaces no initializer: no name is refused.
  api.CloneSessionOptions = [](const OrtSessionOptions*, OrtSessionOptions** copy) noexcept {
    static int options;
    *copy = reinterpret_cast<OrtSessionOptions*>(&options);
    return static_cast<OrtStatus*>(nullptr);
  };
  api.ReleaseSessionOptions = [](OrtSessionOptions*) noexcept {};
  api.CreateCpuMemoryInfo = [](OrtAllocatorType, OrtMemType, OrtMemoryInfo** memory) noexcept {
    static int info;
    *memory = reinterpret_cast<OrtMemoryInfo*>(&info);
    return static_cast<OrtStatus*>(nullptr);
  };
  api.ReleaseMemoryInfo = [](OrtMemoryInfo*) noexcept {};
  api.CreateTensorWithDataAsOrtValue = [](const OrtMemoryInfo*, void*, size_t, const int64_t*,
                                          size_t, ONNXTensorElementDataType,
                                          OrtValue** value) noexcept {
    *value = new OrtValue();
    return static_cast<OrtStatus*>(nullptr);
  };
  api.ReleaseValue = [](OrtValue* value) noexcept { delete value; };
  api.AddInitializer = [](OrtSessionOptions*, const char*, const OrtValue*) noexcept {
    return static_cast<OrtStatus*>(nullptr);
  };
  api.GetEpApi = []() noexcept -> const OrtEpApi* {
    static const OrtEpApi ep_api = [] {
      OrtEpApi made{};
      made.EpGraphSupportInfo_AddNodesToFuse =
          [](OrtEpGraphSupportInfo* info, const OrtNode* const* nodes, size_t count,
             const OrtNodeFusionOptions* options) noexcept -> OrtStatus* {
        std::vector<const OrtNode*> group(nodes, nodes + count);
        std::ranges::sort(group);  // in the order of the graph
        info->groups.push_back({std::move(group), options->drop_constant_initializers});
        return nullptr;
      };
      return made;
    }();
    return &ep_api;
  };

  // --- a call
  api.KernelContext_GetInput = [](const OrtKernelContext* context, size_t index,
                                  const OrtValue** value) noexcept -> OrtStatus* {
    if (index >= context->inputs.size()) return Fault(ORT_INVALID_ARGUMENT, "no such input");
    *value = context->inputs[index];
    return nullptr;
  };
  api.KernelContext_GetOutput = [](OrtKernelContext* context, size_t index, const int64_t* dims,
                                   size_t rank, OrtValue** value) noexcept -> OrtStatus* {
    if (index >= context->outputs.size()) return Fault(ORT_INVALID_ARGUMENT, "no such output");
    OrtValue& output = context->outputs[index];
    const std::vector<int64_t> shape(dims, dims + rank);
    if (output.bytes != nullptr) {  // requested once more
      *value = &output;
      return output.info.shape == shape ? nullptr : Fault(ORT_RUNTIME_EXCEPTION, "another shape");
    }
    output.info.shape = shape;
    const int64_t bytes = ByteCountOf(output.info, kMostOutputBytes);
    if (bytes < 0) return Fault(ORT_RUNTIME_EXCEPTION, "the output cannot be allocated");
    output.bytes = std::make_unique<uint8_t[]>(static_cast<size_t>(bytes));
    *value = &output;
    return nullptr;
  };
  api.KernelContext_ParallelFor = [](const OrtKernelContext*, void (*call)(void*, size_t),
                                     size_t count, size_t, void* data) noexcept -> OrtStatus* {
    for (size_t i = 0; i < count; ++i) call(data, i);
    return nullptr;
  };
  return api;
}

// Whether a call succeeded. Releases its status.
bool Good(OrtStatus* status) {
  if (status != nullptr) Api()->ReleaseStatus(status);
  return status == nullptr;
}

bool IsNamed(const std::vector<OrtValueInfo>& values, const std::string& name) {
  return std::ranges::any_of(values, [&](const OrtValueInfo& value) { return value.name == name; });
}

// The node that ONNX Runtime makes from claimed ones. Its inputs are the values that they read and
// do not write, its outputs those that they write for others, each once.
OrtNode Fused(const OrtEpGraphSupportInfo::Group& group, const OrtGraph& graph) {
  OrtNode fused;
  fused.name = "fused " + group.nodes[0]->name;
  const auto writes = [&](const OrtNode* node, const std::string& name) {
    return IsNamed(node->outputs, name);
  };
  const auto is_read_outside = [&](const std::string& name) {
    const auto is_it = [&](const OrtValueInfo* output) { return output->name == name; };
    return std::ranges::any_of(graph.outputs, is_it) ||
           std::ranges::any_of(graph.nodes, [&](const OrtNode* node) {
             return std::ranges::find(group.nodes, node) == group.nodes.end() &&
                    IsNamed(node->inputs, name);
           });
  };
  for (const OrtNode* node : group.nodes) {
    for (const OrtValueInfo& input : node->inputs) {
      if (input.name.empty() || IsNamed(fused.inputs, input.name)) continue;
      if (input.initializer != nullptr && group.drop_constants) continue;
      const bool inside = std::ranges::any_of(
          group.nodes, [&](const OrtNode* other) { return writes(other, input.name); });
      if (!inside) fused.inputs.push_back(input);
    }
    for (const OrtValueInfo& output : node->outputs) {
      if (output.name.empty() || IsNamed(fused.outputs, output.name)) continue;
      if (is_read_outside(output.name)) fused.outputs.push_back(output);
    }
  }
  return fused;
}

// Runs the nodes that a provider has compiled. Results are kept as `values` for later nodes. False
// if an input is missing because nothing has computed it.
bool Run(OrtNodeComputeInfo* info, const OrtNode& shell,
         std::map<std::string, std::shared_ptr<const OrtValue>>& values) {
  OrtKernelContext context;
  for (const OrtValueInfo& input : shell.inputs) {
    const auto value = values.find(input.name);
    const OrtValue* constant = input.initializer.get();
    context.inputs.push_back(value != values.end() ? value->second.get() : constant);
    if (context.inputs.back() == nullptr) return false;
  }
  for (const OrtValueInfo& output : shell.outputs) {
    context.outputs.push_back({output.type.tensor, nullptr});
  }
  void* state = nullptr;
  if (!Good(info->CreateState(info, nullptr, &state))) return false;
  const bool good = Good(info->Compute(info, state, &context));
  info->ReleaseState(info, state);
  for (size_t i = 0; good && i < shell.outputs.size(); ++i) {
    if (context.outputs[i].bytes == nullptr) continue;
    values[shell.outputs[i].name] = std::make_shared<OrtValue>(std::move(context.outputs[i]));
  }
  return good;
}

}  // namespace

const OrtApi* Api() {
  static const OrtApi api = MakeApi();
  return &api;
}

std::shared_ptr<OrtValue> ReadTensor(std::istream& text) {
  auto tensor = std::make_shared<OrtValue>();
  int type = 0;
  size_t rank = 0;
  text >> type >> rank;
  if (!text || type < 0 || type > ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 || rank > 8)
    return nullptr;
  tensor->info.type = static_cast<ONNXTensorElementDataType>(type);
  tensor->info.shape.resize(rank);
  for (int64_t& dim : tensor->info.shape) text >> dim;
  if (!text) return nullptr;
  std::vector<double> values;
  for (double value; values.size() < 4096 && text >> value;) values.push_back(value);
  const int64_t bytes = ByteCountOf(tensor->info, kMostBytes);
  if (bytes < 0) return nullptr;
  tensor->bytes.reset(new uint8_t[static_cast<size_t>(bytes)]);
  Fill(*tensor, bytes, values);
  return tensor;
}

void RunSession(const std::string& model_path, const std::vector<OrtNode>& nodes,
                const std::map<std::string, std::shared_ptr<OrtValue>>& feeds,
                const ep::Settings& settings) {
  std::optional<ep::Ep> provider;
  try {
    provider.emplace(RuntimeApi{Api(), ORT_API_VERSION, ORT_API_VERSION}, nullptr, settings,
                     ep::ContextOptions{}, ep::Overrides(Api(), nullptr));
  } catch (const Error&) {
    return;
  }
  OrtGraph graph{model_path, {}};
  for (const OrtNode& node : nodes) graph.nodes.push_back(&node);
  for (const OrtNode& node : nodes) {
    for (const OrtValueInfo& output : node.outputs) {
      const bool is_read = std::ranges::any_of(
          nodes, [&](const OrtNode& other) { return IsNamed(other.inputs, output.name); });
      if (!output.name.empty() && !is_read) graph.outputs.push_back(&output);
    }
  }
  OrtEpGraphSupportInfo support;
  if (!Good(provider->GetCapability(&*provider, &graph, &support))) return;

  std::vector<OrtGraph> parts;
  std::vector<OrtNode> shells;
  for (const OrtEpGraphSupportInfo::Group& group : support.groups) {
    parts.push_back({model_path, group.nodes});
    shells.push_back(Fused(group, graph));
  }
  std::vector<const OrtGraph*> part_pointers;
  std::vector<const OrtNode*> shell_pointers;
  for (const OrtGraph& part : parts) part_pointers.push_back(&part);
  for (const OrtNode& shell : shells) shell_pointers.push_back(&shell);
  std::vector<OrtNodeComputeInfo*> infos(parts.size());
  std::vector<OrtNode*> context_nodes(parts.size());
  if (!Good(provider->Compile(&*provider, part_pointers.data(), shell_pointers.data(), parts.size(),
                              infos.data(), context_nodes.data()))) {
    return;
  }
  std::map<std::string, std::shared_ptr<const OrtValue>> values(feeds.begin(), feeds.end());
  for (size_t i = 0; i < infos.size(); ++i) Run(infos[i], shells[i], values);
  provider->ReleaseNodeComputeInfos(&*provider, infos.data(), infos.size());
}

}  // namespace ort_aie::fuzz
