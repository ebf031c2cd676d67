#include "ort/ep/context_node.h"

#include <algorithm>

#include "base/error.h"
#include "base/platform.h"
#include "ort/ep/ep.h"

namespace ort_aie::ep {
namespace {

// The size of the largest tensor in a graph and in the graphs inside its nodes; -1 if there are
// none.
int64_t LargestTensor(const OrtApi* api, const OrtGraph* graph) {
  size_t count = 0;
  Check(api, api->Graph_GetNumInitializers(graph, &count));
  std::vector<const OrtValueInfo*> initializers(count);
  Check(api, api->Graph_GetInitializers(graph, initializers.data(), count));
  int64_t largest = -1;
  for (const OrtValueInfo* info : initializers) {
    const OrtValue* value = nullptr;
    Check(api, api->ValueInfo_GetInitializerValue(info, &value));
    largest = std::max(largest, DescribeConstant(api, value).bytes);
  }
  for (const OrtNode* node : Read(api, graph).nodes) {
    for (const OrtGraph* body : BodiesOf(api, node)) {
      largest = std::max(largest, LargestTensor(api, body));
    }
  }
  return largest;
}

}  // namespace

bool IsContext(const graph::Node& node) {
  return node.Is("com.microsoft", "EPContext") && node.String("source", "") == kName;
}

// ONNX Runtime keeps tensors of a body that are larger than kLargestInModel only in memory, and
// then refuses its own model. This is so in every version from 1.24 to 1.32. Versions before 1.31
// also write each tensor of a body twice, and cannot open the result.
std::string WhyNoContext(const RuntimeApi& runtime, const ReadGraph& graph) {
  constexpr int64_t kLargestInModel = 127;
  const int64_t largest = runtime.runtime >= 31 ? kLargestInModel : -1;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const OrtGraph* body : BodiesOf(runtime.api, graph.nodes[i])) {
      const int64_t bytes = LargestTensor(runtime.api, body);
      if (bytes <= largest) continue;
      return Concat("ep.context_enable=1: a branch or body of node '",
                    graph.graph.LabelOf(graph.graph.nodes[i]), "' holds a tensor of ", bytes,
                    " bytes, and ONNX Runtime 1.", runtime.runtime,
                    " cannot write a context model with a tensor of this size there; open the "
                    "model as it is, or compile "
                    "it (ort-aie compile)");
    }
  }
  return "";
}

std::vector<BodyConstant> BodyConstantsOf(const OrtApi* api, const ReadGraph& main) {
  std::map<int, BodyConstant> constants;
  std::vector<size_t> own(main.nodes.size());  // inputs of the nodes themselves
  for (size_t i = 0; i < main.nodes.size(); ++i) {
    Check(api, api->Node_GetNumInputs(main.nodes[i], &own[i]));
    const graph::Node& node = main.graph.nodes[i];
    for (size_t input = own[i]; input < node.inputs.size(); ++input) {
      const graph::Value& value = main.graph.value(node.inputs[input]);
      if (!value.constant) continue;
      constants.try_emplace(node.inputs[input],
                            BodyConstant{value.name, main.graph.LabelOf(node), {}});
    }
  }
  for (size_t i = 0; i < main.nodes.size(); ++i) {
    for (size_t input = 0; input < own[i]; ++input) {
      const auto found = constants.find(main.graph.nodes[i].inputs[input]);
      if (found != constants.end()) found->second.readers.push_back(main.ids[i]);
    }
  }
  std::vector<BodyConstant> list;
  for (auto& [value, constant] : constants) list.push_back(std::move(constant));
  return list;
}

// ONNX Runtime copies the constants that the remaining nodes read themselves, and refuses its own
// model if a body lacks one. This is so in every version from 1.24 to 1.32.
std::string WhyNoContext(const std::vector<BodyConstant>& constants,
                         const std::vector<size_t>& claimed) {
  for (const BodyConstant& constant : constants) {
    const bool copied = std::ranges::any_of(
        constant.readers, [&](size_t id) { return !std::ranges::binary_search(claimed, id); });
    if (copied) continue;
    return Concat("ep.context_enable=1: a branch or body of node '", constant.node,
                  "' reads the initializer '", constant.name,
                  "' of the graph around it, which no other node reads that stays with ONNX "
                  "Runtime, and ONNX Runtime cannot write a context model then; open the model as "
                  "it is, or compile it (ort-aie compile)");
  }
  return "";
}

OrtNode* MakeContextNode(const OrtApi* api, const FusedNode& fused, const Part& part,
                         const std::string& file, const std::string& id) {
  std::vector<OrtOpAttr*> attributes;
  const auto add = [&](const char* name, const void* data, size_t size, OrtOpAttrType type) {
    OrtOpAttr* attribute = nullptr;
    Check(api, api->CreateOpAttr(name, data, static_cast<int>(size), type, &attribute));
    attributes.push_back(attribute);
  };
  const auto text = [&](const char* name, const std::string& value) {
    add(name, value.data(), value.size(), ORT_OP_ATTR_STRING);
  };
  const int64_t zero = 0, one = 1;
  add("embed_mode", &zero, 1, ORT_OP_ATTR_INT);
  add("main_context", &one, 1, ORT_OP_ATTR_INT);
  text("source", kName);
  text("ep_cache_context", file);
  text("partition_name", id);
  text("ep_sdk_version", ORT_AIE_VERSION);
  text("notes", ToText(part.recipe));
  const auto pointers = [](const std::vector<std::string>& names) {
    std::vector<const char*> list;
    for (const std::string& name : names) list.push_back(name.c_str());
    return list;
  };
  const auto inputs = pointers(part.inputs), outputs = pointers(part.outputs);
  OrtNode* node = nullptr;
  OrtStatus* status = api->GetModelEditorApi()->CreateNode(
      "EPContext", "com.microsoft", fused.name.c_str(), inputs.data(), inputs.size(),
      outputs.data(), outputs.size(), attributes.data(), attributes.size(), &node);
  for (OrtOpAttr* attribute : attributes) api->ReleaseOpAttr(attribute);
  Check(api, status);
  return node;
}

Part ContextReader::Read(const graph::Graph& graph, const graph::Node& node) {
  constexpr char kAgain[] = "; generate the context model again";
  Part part;
  try {
    part.recipe = RecipeFrom(node.String("notes", ""));
  } catch (const Error& error) {
    throw Error(error.code(), Concat("EPContext node '", node.name, "': ", error.what(), kAgain));
  }
  Recipe& recipe = part.recipe;
  Require(std::cmp_equal(recipe.inputs, node.inputs.size()), "EPContext node '", node.name,
          "': its recipe has ", recipe.inputs, " inputs, but the node has ", node.inputs.size(),
          kAgain);
  Require(recipe.outputs.size() == node.outputs.size(), "EPContext node '", node.name,
          "': its recipe has ", recipe.outputs.size(), " outputs, but the node has ",
          node.outputs.size(), kAgain);
  for (const int input : node.inputs) {
    Require(input != graph::kAbsent, "EPContext node '", node.name, "': an input is missing",
            kAgain);
    part.inputs.push_back(graph.value(input).name);
  }
  for (const int output : node.outputs) part.outputs.push_back(graph.value(output).name);
  if (recipe.constants.empty()) return part;
  const auto file = FileOf(node);
  for (const Recipe::Constant& constant : recipe.constants) {
    part.constants.push_back(
        {constant.type, constant.shape, file->At(constant.range), true, constant.range.size});
  }
  part.memory.push_back(file);
  return part;
}

std::shared_ptr<const ContextFile> ContextReader::FileOf(const graph::Node& node) {
  const std::string name = node.String("ep_cache_context", "");
  const std::string id = node.String("partition_name", "");
  Require(!name.empty() && name.find_first_of(platform::kSeparators) == std::string::npos,
          "EPContext: attribute ep_cache_context must be the name of a file beside the model, "
          "got '",
          name, "'");
  std::shared_ptr<const ContextFile>& file = files_[{name, id}];
  if (file != nullptr) return file;
  std::string tried;
  for (const std::string& folder : folders_) {
    const std::string path = folder + name;
    if (platform::Exists(path)) {
      return file = std::make_shared<ContextFile>(path, id, folders_, memory_);
    }
    tried += (tried.empty() ? "" : " or ") + path;
  }
  Fail(ErrorCode::kInvalidArgument, name, ", the weights of the EPContext model, is not at ", tried,
       "; it must be beside the model; for a model in memory, give the path of the model in "
       "ep.context_file_path");
}

}  // namespace ort_aie::ep
