#include "ort/ep/ep.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "ops/format.h"
#include "ops/weights.h"
#include "ort/custom_op.h"
#include "ort/ep/claims.h"
#include "ort/ep/context_file.h"
#include "ort/ep/packed_weights.h"

namespace ort_aie::ep {
namespace {

// A claimed node, ready to run.
struct Compiled : OrtNodeComputeInfo {
  RuntimeApi runtime{};
  std::unique_ptr<Kernel> kernel;
  IoMap map;
  // What the kernel reads.
  std::shared_ptr<const PackedWeights> packed;
  std::shared_ptr<const ContextFile> file;
  std::vector<std::vector<uint8_t>> copies;
  std::shared_ptr<WrittenContext> written;  // by this session, or null
};

const OpDescription& DescriptionOf(Kind kind) {
  switch (kind) {
    case Kind::kMatMul:
      return Q4NXMatMulDescription();
    case Kind::kGather:
      return Q4NXGatherDescription();
    default:
      return FlowAttentionDescription();
  }
}

// A node to compile, of either origin.
struct Item {
  Recipe recipe;
  Tensor weights;
  std::map<int, Tensor> constants;  // inputs of the op that the fused node does not have
  std::shared_ptr<const PackedWeights> packed;
  std::shared_ptr<const ContextFile> file;
};

bool IsContext(const Node& node) {
  return node.Is("com.microsoft", "EPContext") && node.String("source", "") == kName;
}

std::string ModelPath(const OrtApi* api, const OrtGraph* graph) {
  const char* path = nullptr;
  Check(api, api->Graph_GetModelPath(graph, &path));
  return path != nullptr ? path : "";
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

SessionOptions OptionsOf(const Settings& settings) {
  const auto entry = [&](const char* name) -> std::optional<std::string> {
    const auto found = settings.find(name);
    return found != settings.end() ? std::optional(found->second) : std::nullopt;
  };
  return ReadOptions(entry, &settings);  // which are the provider's
}

std::unique_ptr<Compiled> MakeCompiled(const RuntimeApi& runtime, const Settings& settings,
                                       const Item& item, const std::string& name) {
  auto compiled = std::make_unique<Compiled>();
  compiled->runtime = runtime;
  compiled->packed = item.packed;
  compiled->file = item.file;
  for (int position : item.recipe.inputs) compiled->map.inputs.push_back({position, {}});
  compiled->map.outputs = item.recipe.outputs;
  for (const auto& [position, constant] : item.constants) {
    Require(position < static_cast<int>(compiled->map.inputs.size()), "node '", name,
            "' has no input ", position);
    Tensor& kept = compiled->map.inputs[static_cast<size_t>(position)].constant;
    kept = constant;
    if (item.file != nullptr) continue;  // it lives as long as the mapped file
    const auto* bytes = constant.as<uint8_t>();
    compiled->copies.emplace_back(bytes, bytes + constant.bytes);
    kept.data = compiled->copies.back().data();
  }
  const OpDescription& op = DescriptionOf(item.recipe.kind);
  for (size_t i = 0; i < op.required_outputs; ++i) {
    Require(i < item.recipe.outputs.size() && item.recipe.outputs[i] != Recipe::kAbsent, "node '",
            name, "': output ", i, " of ", op.name, " is missing");
  }
  try {
    compiled->kernel = MakeKernel(op, RecipeInfo(item.recipe, item.weights), OptionsOf(settings));
  } catch (const Error& error) {
    throw Error(error.code(), Concat("node '", name, "': ", error.what()));
  }
  compiled->ort_version_supported = runtime.version;
  compiled->CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*,
                             void** state) noexcept -> OrtStatus* {
    // Kernels are made when the context model has been written.
    const auto* node = static_cast<const Compiled*>(self);
    if (node->written != nullptr) node->written->Release();
    *state = self;
    return nullptr;
  };
  compiled->Compute = [](OrtNodeComputeInfo* self, void*,
                         OrtKernelContext* context) noexcept -> OrtStatus* {
    const auto& node = *static_cast<const Compiled*>(self);
    return Guard(node.runtime.api,
                 [&] { node.kernel->Compute(KernelContext(node.runtime, context, node.map)); });
  };
  compiled->ReleaseState = [](OrtNodeComputeInfo*, void*) noexcept {};
  return compiled;
}

// Of EPContext nodes, whose attributes name the file and hold the recipe.
class ContextReader {
 public:
  explicit ContextReader(std::string folder) : folder_(std::move(folder)) {}

  Item Read(const Node& node, const Node& fused) {
    Item item;
    item.recipe = RecipeFrom(node.String("notes", ""), node.inputs().size(), node.outputs().size());
    // Positions in the EPContext node become those in the node that ONNX Runtime made of it.
    const auto translate = [](std::vector<int>& positions, const std::vector<Value>& from,
                              const std::vector<Value>& to) {
      for (int& position : positions) {
        if (position == Recipe::kAbsent) continue;
        int found = Recipe::kAbsent;
        for (size_t i = 0; i < to.size(); ++i) {
          if (to[i].name == from[static_cast<size_t>(position)].name) found = static_cast<int>(i);
        }
        position = found;
      }
    };
    translate(item.recipe.inputs, node.inputs(), fused.inputs());
    translate(item.recipe.outputs, node.outputs(), fused.outputs());
    const Recipe::Span& weights = item.recipe.weights;
    if (weights.size == 0 && item.recipe.constants.empty()) return item;
    item.file = FileOf(node);
    for (const auto& [position, constant] : item.recipe.constants) {
      item.constants[position] = {constant.type, constant.shape, item.file->At(constant.span), true,
                                  constant.span.size};
    }
    if (weights.size == 0) return item;
    const int64_t n = item.recipe.ints.at("N"), k = item.recipe.ints.at("K");
    item.weights = {DataType::kUint8, BlocksShape(n, k, FormOf(item.recipe)),
                    item.file->At(weights), true, weights.size};
    return item;
  }

 private:
  // The file that the node names; what several nodes name is mapped once.
  std::shared_ptr<const ContextFile> FileOf(const Node& node) {
    const std::string name = node.String("ep_cache_context", "");
    const std::string id = node.String("partition_name", "");
    Require(!name.empty() && name.find('/') == std::string::npos,
            "EPContext: attribute ep_cache_context must be the name of a file beside the model, "
            "got '",
            name, "'");
    std::shared_ptr<const ContextFile>& file = files_[{name, id}];
    if (file == nullptr) file = std::make_shared<ContextFile>(folder_ + name, id);
    return file;
  }

  const std::string folder_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const ContextFile>> files_;
};

// Inputs of a claimed node that are constants and that the fused node does not have.
std::map<int, Tensor> DroppedConstants(const Claim& claim, const Recipe& recipe) {
  std::map<int, Tensor> constants;
  for (size_t i = 0; i < recipe.inputs.size(); ++i) {
    const Tensor& constant = InputAt(claim, static_cast<int>(i)).initializer;
    if (recipe.inputs[i] != Recipe::kAbsent || !constant || constant.bytes == 0) continue;
    constants[static_cast<int>(i)] = constant;
  }
  return constants;
}

// The tensors of a graph and of those in its nodes are at most so large each.
int64_t LargestTensor(const OrtApi* api, const OrtGraph* graph) {
  size_t count = 0;
  Check(api, api->Graph_GetNumInitializers(graph, &count));
  std::vector<const OrtValueInfo*> initializers(count);
  Check(api, api->Graph_GetInitializers(graph, initializers.data(), count));
  int64_t largest = 0;
  for (const OrtValueInfo* info : initializers) {
    const OrtValue* value = nullptr;
    Check(api, api->ValueInfo_GetInitializerValue(info, &value));
    largest = std::max(largest, DescribeConstant(api, value).bytes);
  }
  for (const Node& node : NodesOf(api, graph)) {
    for (const OrtGraph* body : node.Bodies())
      largest = std::max(largest, LargestTensor(api, body));
  }
  return largest;
}

// Why ONNX Runtime cannot write a context model of a graph with these nodes; empty if it can. It
// has tensors of a body that are larger than this in memory only, and then refuses its own model,
// in every version from 1.24 to 1.31.
std::string WhyNoContext(const OrtApi* api, const std::vector<Node>& nodes) {
  constexpr int64_t kLargestInModel = 127;
  for (const Node& node : nodes) {
    for (const OrtGraph* body : node.Bodies()) {
      const int64_t bytes = LargestTensor(api, body);
      if (bytes <= kLargestInModel) continue;
      return Concat("ep.context_enable=1: a branch or body of node '", node.name(),
                    "' holds a tensor of ", bytes,
                    " bytes, and ONNX Runtime cannot write a context model with such; open the "
                    "model as it is, or compile it (ort-aie compile)");
    }
  }
  return "";
}

OrtNode* MakeContextNode(const OrtApi* api, const Node& fused, const Recipe& recipe,
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
  text("notes", ToText(recipe));
  const auto names = [](const std::vector<Value>& values) {
    std::vector<const char*> pointers;
    for (const Value& value : values) pointers.push_back(value.name.c_str());
    return pointers;
  };
  const auto inputs = names(fused.inputs()), outputs = names(fused.outputs());
  OrtNode* node = nullptr;
  OrtStatus* status = api->GetModelEditorApi()->CreateNode(
      "EPContext", "com.microsoft", fused.name().c_str(), inputs.data(), inputs.size(),
      outputs.data(), outputs.size(), attributes.data(), attributes.size(), &node);
  for (OrtOpAttr* attribute : attributes) api->ReleaseOpAttr(attribute);
  Check(api, status);
  return node;
}

}  // namespace

std::string CompatibilityInfo() { return Concat("format=", kFormat); }

Ep::Ep(const RuntimeApi& runtime, const OrtLogger* logger, Settings settings,
       ContextOptions context)
    : OrtEp{},
      runtime_(runtime),
      logger_(logger),
      settings_(std::move(settings)),
      context_(std::move(context)) {
  for (const auto& [name, value] : settings_) {
    Require(IsOption(name), "provider option '", name, "' is unknown; expected one of ",
            OptionNames());
  }
  options_ = OptionsOf(settings_);
  Require(!context_.enable || !context_.embed,
          "ep.context_embed_mode=1: weights are written to a file beside the model; use 0");

  ort_version_supported = runtime.version;
  OrtEp::GetName = [](const OrtEp*) noexcept { return kName; };
  OrtEp::GetCapability = [](OrtEp* self, const OrtGraph* graph,
                            OrtEpGraphSupportInfo* info) noexcept -> OrtStatus* {
    auto* ep = static_cast<Ep*>(self);
    return Guard(ep->runtime_.api, [&] { ep->ClaimAll(graph, info); });
  };
  OrtEp::Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode** fused, size_t count,
                      OrtNodeComputeInfo** infos, OrtNode** nodes) noexcept -> OrtStatus* {
    auto* ep = static_cast<Ep*>(self);
    return Guard(ep->runtime_.api, [&] { ep->CompileAll(graphs, fused, count, infos, nodes); });
  };
  OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i) delete static_cast<Compiled*>(infos[i]);
  };
  OrtEp::GetCompiledModelCompatibilityInfo = [](OrtEp* self, const OrtGraph*) noexcept {
    // ONNX Runtime asks when it has made the context model, for what it writes into it.
    const auto* ep = static_cast<const Ep*>(self);
    if (ep->written_ != nullptr) ep->written_->Keep();
    return ep->compatibility_.c_str();
  };
}

void Ep::Log(OrtLoggingLevel level, const std::string& message) const {
  Check(runtime_.api, runtime_.api->Logger_LogMessage(logger_, level, message.c_str(), __FILE__,
                                                      __LINE__, kName));
}

void Ep::ClaimAll(const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
  const OrtApi* api = runtime_.api;
  const std::vector<Node> nodes = NodesOf(api, graph);
  if (context_.enable && why_no_context_.empty()) why_no_context_ = WhyNoContext(api, nodes);
  const auto claim = [&](const Node& node, bool drop_constants) {
    OrtNodeFusionOptions options{};
    options.ort_version_supported = runtime_.version;
    options.drop_constant_initializers = drop_constants;
    const OrtNode* raw = node.get();
    Check(api, api->GetEpApi()->EpGraphSupportInfo_AddNodesToFuse(info, &raw, 1, &options));
  };
  for (const Claim& verdict : ClaimNodes(nodes)) {
    if (verdict.why_not.empty()) {
      // Packed weights are ours. The tables of rotary embeddings are inputs like any other, but a
      // context model has them beside it, not inside.
      claim(*verdict.node, verdict.kind != Kind::kAttention || context_.enable);
    } else {
      Log(ORT_LOGGING_LEVEL_INFO, Concat("node '", verdict.node->name(), "' stays on another ",
                                         "execution provider: ", verdict.why_not));
    }
  }
  for (const Node& node : nodes) {
    if (IsContext(node)) claim(node, false);
  }
}

void Ep::CompileAll(const OrtGraph* const* graphs, const OrtNode* const* fused, size_t count,
                    OrtNodeComputeInfo** infos, OrtNode** context_nodes) {
  if (count == 0) return;
  const OrtApi* api = runtime_.api;
  std::vector<Node> nodes, shells;
  for (size_t i = 0; i < count; ++i) {
    std::vector<Node> group = NodesOf(api, graphs[i]);
    Require(group.size() == 1, "expected one node in a fused graph, got ", group.size());
    nodes.push_back(std::move(group[0]));
    shells.emplace_back(api, fused[i]);
  }
  std::vector<Item> items(count);

  // Nodes that carry their recipe.
  const std::string model = ModelPath(api, graphs[0]);
  ContextReader reader(FolderOf(model));
  for (size_t i = 0; i < count; ++i) {
    if (IsContext(nodes[i])) items[i] = reader.Read(nodes[i], shells[i]);
  }

  // Nodes of the model.
  const std::vector<Claim> claims = ClaimNodes(nodes);
  const auto index_of = [&](const Node* node) { return static_cast<size_t>(node - nodes.data()); };
  std::map<const Node*, std::shared_ptr<const PackedWeights>> packed;  // by MatMulNBits
  for (const Claim& claim : claims) {
    Item& item = items[index_of(claim.node)];
    item.recipe = MakeRecipe(claim, shells[index_of(claim.node)]);
    item.constants = DroppedConstants(claim, item.recipe);
    if (claim.projection == nullptr) continue;
    std::shared_ptr<const PackedWeights>& weights = packed[claim.projection];
    if (weights == nullptr) {
      weights = PackMatMul(*claim.projection);
      Log(ORT_LOGGING_LEVEL_INFO,
          Concat("packed '", claim.projection->name(), "' (", packed.size(), ")"));
    }
    item.packed = weights;
    item.weights = weights->blocks;
  }

  if (context_.enable && !claims.empty()) {
    Require(why_no_context_.empty(), why_no_context_);
    Require(
        written_ == nullptr,
        "ep.context_enable=1: nodes of a branch or body (If, Loop, Scan) and of the graph around "
        "it cannot be in one context model; open the model as it is, or compile it (ort-aie "
        "compile)");
    std::string path = context_.path;
    if (path.empty()) {
      Require(!model.empty(), "ep.context_file_path must be given for a model without a file");
      path = model.substr(0, model.rfind('.')) + "_ctx.onnx";
    }
    const std::string data = path + ".aie";
    ContextWriter writer(data, path);
    // What several nodes read is written once: packed weights have one address, other initializers
    // one name.
    std::map<std::string, Recipe::Span> spans;
    const auto write = [&](const std::string& key, const Tensor& tensor) {
      const auto [span, is_new] = spans.try_emplace(key);
      if (is_new) span->second = writer.Add(tensor.data, tensor.bytes);
      return span->second;
    };
    for (const Claim& claim : claims) {
      Item& item = items[index_of(claim.node)];
      if (item.weights) {
        item.recipe.weights = write(Concat("packed at ", item.weights.data), item.weights);
      }
      for (const auto& [position, constant] : item.constants) {
        item.recipe.constants[position] = {constant.type, constant.shape,
                                           write(InputAt(claim, position).name, constant)};
      }
    }
    written_ = writer.Finish();
    // This session goes on with the file as well: what all layers share is there once.
    const auto file = std::make_shared<const ContextFile>(data, writer.id());
    for (Item& item : items) {
      item.file = file;
      item.packed.reset();
      if (item.weights) item.weights.data = file->At(item.recipe.weights);
      for (auto& [position, constant] : item.constants) {
        constant.data = file->At(item.recipe.constants[position].span);
      }
    }
    for (size_t i = 0; i < count; ++i) {
      context_nodes[i] = MakeContextNode(api, shells[i], items[i].recipe,
                                         data.substr(FolderOf(data).size()), writer.id());
    }
  }

  std::vector<std::unique_ptr<Compiled>> compiled;
  for (size_t i = 0; i < count; ++i) {
    compiled.push_back(MakeCompiled(runtime_, settings_, items[i], nodes[i].name()));
    compiled.back()->written = written_;
  }
  for (size_t i = 0; i < count; ++i) infos[i] = compiled[i].release();
}

}  // namespace ort_aie::ep
