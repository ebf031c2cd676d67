#include "ort/ep/ep.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/platform.h"
#include "ops/format.h"
#include "ort/ep/constants.h"
#include "ort/ep/context_file.h"
#include "ort/ep/context_node.h"
#include "ort/node_kernel.h"

namespace ort_aie::ep {
namespace {

// A region, ready to run.
struct Compiled : OrtNodeComputeInfo {
  RuntimeApi runtime{};
  std::unique_ptr<NodeKernel> kernel;
  IoMap map;
  std::vector<std::shared_ptr<const void>> memory;  // owns what the kernel reads
  std::shared_ptr<WrittenContext> written;          // by this session, or null
};

std::string ModelPath(const OrtApi* api, const OrtGraph* graph) {
  const ORTCHAR_T* path = nullptr;
  Check(api, api->Graph_GetModelPath(graph, &path));
  return path != nullptr ? platform::TextOf(path) : "";
}

std::string FolderOf(const std::string& path) {
  return path.substr(0, path.find_last_of(platform::kSeparators) + 1);
}

constexpr char kNoContextOfBodies[] =
    "ep.context_enable=1: nodes of a branch or body (If, Loop, Scan) cannot be in a context model, "
    "into which ONNX Runtime writes branches as they were, without their weights; open the model "
    "as it is, or compile it (ort-aie compile)";

bool IsBody(const OrtApi* api, const OrtGraph* graph) {
  const OrtNode* parent = nullptr;
  Check(api, api->Graph_GetParentNode(graph, &parent));
  return parent != nullptr;
}

SessionOptions OptionsOf(const Settings& settings) {
  return ReadOptions(settings, &settings);  // the provider's own options among them
}

OrtStatus* KeepWritten(const RuntimeApi& runtime, WrittenContext* written) noexcept {
  return Guard(runtime.api, [&] {
    if (written != nullptr) written->Keep();
  });
}

std::unique_ptr<Compiled> MakeCompiled(const RuntimeApi& runtime, const Settings& settings,
                                       const Part& part, const FusedNode& fused) {
  auto compiled = std::make_unique<Compiled>();
  compiled->runtime = runtime;
  compiled->memory = part.memory;
  for (const std::string& name : part.inputs) {
    const int position = FusedNode::Position(fused.inputs, name);
    Require(position != IoMap::kAbsent, "node '", fused.name, "' has no input '", name, "'");
    compiled->map.inputs.push_back({position, {}});
  }
  Recipe recipe = part.recipe;
  for (size_t i = 0; i < part.outputs.size(); ++i) {
    const int position = FusedNode::Position(fused.outputs, part.outputs[i]);
    compiled->map.outputs.push_back(position);
    if (position == IoMap::kAbsent) recipe.outputs[i] = Recipe::kAbsent;
  }
  const auto constants = [&](int value) {
    const int place = part.recipe.ConstantOf(value);
    return place != Recipe::kAbsent ? part.constants[static_cast<size_t>(place)] : Tensor{};
  };
  compiled->kernel = MakeKernel(std::move(recipe), constants, fused.name, OptionsOf(settings));
  compiled->ort_version_supported = runtime.version;
  compiled->CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*,
                             void** state) noexcept -> OrtStatus* {
    // Kernels are made after the context model has been written.
    const auto* node = static_cast<const Compiled*>(self);
    *state = self;
    return KeepWritten(node->runtime, node->written.get());
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

}  // namespace

std::string CompatibilityInfo() { return Concat("format=", kFormat, " recipe=", kRecipeFormat); }

Ep::Ep(const RuntimeApi& runtime, const OrtLogger* logger, Settings settings,
       ContextOptions context, Overrides overrides)
    : OrtEp{},
      runtime_(runtime),
      logger_(logger),
      settings_(std::move(settings)),
      context_(std::move(context)),
      overrides_(std::move(overrides)) {
  options_ = OptionsOf(settings_);
  Require(!context_.enable || !context_.embed,
          "ep.context_embed_mode=1: weights are written to a file beside the model; use 0, and "
          "give ep.context_file_path for a model that is compiled into memory");

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
#if ORT_API_VERSION >= 27
  // From 1.31 on, ONNX Runtime's compile API makes no kernels (which keep what was written, too):
  // this is the first call after it has written the context model.
  OrtEp::OnSessionInitializationEnd = [](OrtEp* self) noexcept -> OrtStatus* {
    const auto* ep = static_cast<const Ep*>(self);
    return KeepWritten(ep->runtime_, ep->written_.get());
  };
#endif
#if ORT_API_VERSION >= 29
  OrtEp::GetWeightlessSupport = [](const OrtEp*,
                                   OrtWeightlessSupport* support) noexcept -> OrtStatus* {
    *support = OrtWeightlessSupport_EXTERNAL_ONLY;
    return nullptr;
  };
#endif
  OrtEp::GetCompiledModelCompatibilityInfo = [](OrtEp* self, const OrtGraph*) noexcept {
    const auto* ep = static_cast<const Ep*>(self);
#if ORT_API_VERSION < 27
    // The call above does not exist with these headers, and this is the last one: the context model
    // has been made, but not written.
    ep->runtime_.api->ReleaseStatus(KeepWritten(ep->runtime_, ep->written_.get()));
#endif
    return ep->compatibility_.c_str();
  };
}

void Ep::Log(OrtLoggingLevel level, const std::string& message) const {
  Check(runtime_.api, runtime_.api->Logger_LogMessage(logger_, level, message.c_str(), ORT_FILE,
                                                      __LINE__, kName));
}

void Ep::ClaimAll(const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
  const OrtApi* api = runtime_.api;
  ReadGraph read = Read(api, graph);
  // ONNX Runtime refuses all of a region of which one node belongs to another provider.
  for (size_t i = 0; i < read.nodes.size(); ++i) {
    const char* provider = nullptr;
    Check(api, api->Node_GetEpName(read.nodes[i], &provider));
    if (provider != nullptr && *provider != '\0' && provider != std::string_view(kName)) {
      read.graph.nodes[i].op_type.clear();
    }
  }
  if (context_.enable && why_no_context_.empty()) why_no_context_ = WhyNoContext(runtime_, read);
  const auto claim = [&](const std::vector<const OrtNode*>& nodes, bool drop_constants) {
    OrtNodeFusionOptions options{};
    options.ort_version_supported = runtime_.version;
    options.drop_constant_initializers = drop_constants;
    Check(api, api->GetEpApi()->EpGraphSupportInfo_AddNodesToFuse(info, nodes.data(), nodes.size(),
                                                                  &options));
  };
  std::map<size_t, const OrtNode*> node_of;
  for (size_t i = 0; i < read.nodes.size(); ++i) {
    node_of[read.ids[i]] = read.nodes[i];
    if (IsContext(read.graph.nodes[i])) claim({read.nodes[i]}, false);
  }
  std::vector<BodyConstant> of_bodies;
  if (context_.enable) of_bodies = BodyConstantsOf(api, read);
  // ONNX Runtime compiles a graph's regions before it asks about another graph.
  std::set<std::string> constants;
  for (const graph::Value& value : read.graph.values) {
    if (value.constant) constants.insert(value.name);
  }
  // An NPU reads blocks of some forms where they are; it would copy others.
  if (std::string_view(options_.target->Name()) != HostTarget().Name()) {
    read.graph.reads_in_place = [target = options_.target](const WeightForm& form) {
      return target->ReadsInPlace(form);
    };
  }
  claims_ = Claim(std::move(read.graph), read.ids, overrides_.Among(constants),
                  options_.stoppable ? graph::Grouping::kLayers : graph::Grouping::kRegions);
  std::vector<size_t> claimed;
  for (const ClaimedRegion& region : claims_.regions) {
    std::vector<const OrtNode*> nodes;
    for (const size_t id : region.nodes) nodes.push_back(node_of.at(id));
    claim(nodes, true);  // the provider keeps packed weights itself, and other constants with them
    claimed.insert(claimed.end(), region.nodes.begin(), region.nodes.end());
  }
  if (context_.enable && why_no_context_.empty() && !claimed.empty()) {
    std::ranges::sort(claimed);
    why_no_context_ = IsBody(api, graph) ? kNoContextOfBodies : WhyNoContext(of_bodies, claimed);
  }
  for (const auto& [node, why] : claims_.left) {
    Log(ORT_LOGGING_LEVEL_INFO,
        Concat("node '", node, "' stays on another execution provider: ", why));
  }
}

const ClaimedRegion& Ep::ClaimOf(std::vector<size_t> nodes, const std::string& name) const {
  std::ranges::sort(nodes);
  const auto found = std::ranges::find(claims_.regions, nodes, &ClaimedRegion::nodes);
  Require(found != claims_.regions.end(), "node '", name,
          "' is not made of nodes that were claimed together");
  return *found;
}

void Ep::CompileAll(const OrtGraph* const* graphs, const OrtNode* const* fused, size_t count,
                    OrtNodeComputeInfo** infos, OrtNode** context_nodes) {
  if (count == 0) return;
  const OrtApi* api = runtime_.api;
  const std::string model = ModelPath(api, graphs[0]), folder = FolderOf(model);
  std::vector<FusedNode> shells;
  std::vector<Part> parts(count);
  std::vector<const ClaimedRegion*> regions;
  std::vector<size_t> part_of;  // by region
  Initializers initializers;
  // A model in memory has no folder, or the one where ONNX Runtime looks for initializers; the
  // options tell where it would be.
  const std::string hint = FolderOf(context_.path);
  std::vector<std::string> context_folders = {model.empty() ? hint : folder};
  if (!model.empty() && !context_.path.empty() && hint != folder) {
    context_folders.push_back(hint);
  }
  // Newer versions of ONNX Runtime have this one as the model's folder already.
  if (!context_.data_folder.empty()) {
    std::string data = platform::TextOf(platform::PathOf(context_.data_folder) / "");
    if (context_folders[0] != data) context_folders.push_back(std::move(data));
  }
  ContextReader reader(std::move(context_folders), options_.weights);
  for (size_t i = 0; i < count; ++i) {
    const ReadGraph read = Read(api, graphs[i]);
    shells.push_back(ReadFused(api, fused[i]));
    if (read.nodes.size() == 1 && IsContext(read.graph.nodes[0])) {
      Require(!context_.enable, "ep.context_enable=1: the model has EPContext nodes already; open ",
              "it without this option, or write a context model of its source");
      parts[i] = reader.Read(read.graph, read.graph.nodes[0]);
      continue;
    }
    regions.push_back(&ClaimOf(read.ids, shells.back().name));
    part_of.push_back(i);
    for (size_t v = 0; v < read.values.size(); ++v) {
      const graph::Value& value = read.graph.values[v];
      if (value.constant) initializers[value.name] = {value.constant, read.values[v]};
    }
  }

  const Constants constants(regions, initializers);
  const bool is_written = context_.enable && !regions.empty();
  std::string data, id;
  std::vector<Recipe::FileRange> ranges;
  std::vector<Tensor> tensors;
  std::vector<std::shared_ptr<const void>> memory;
  if (is_written) {
    Referrer referrer(api, folder, initializers);
    data = WriteContext(model, constants, referrer, ranges, id);
    // This session uses the file as well, which holds what all layers share only once.
    const auto file = std::make_shared<const ContextFile>(written_->place(), id,
                                                          std::vector{folder}, options_.weights);
    for (size_t i = 0; i < ranges.size(); ++i) {
      tensors.push_back(constants.sources()[i].tensor);
      tensors.back().data = file->At(ranges[i]);
    }
    memory.push_back(file);
  } else if (!regions.empty()) {
    tensors = constants.Load(api, folder, memory);
  }
  for (size_t r = 0; r < regions.size(); ++r) {
    Part& part = parts[part_of[r]];
    part = {regions[r]->recipe, regions[r]->inputs, regions[r]->outputs, {}, memory};
    for (size_t i = 0; i < regions[r]->constants.size(); ++i) {
      const size_t index = constants.IndexOf(regions[r]->constants[i]);
      part.constants.push_back(tensors[index]);
      if (is_written) part.recipe.constants[i].range = ranges[index];
    }
    if (!is_written) continue;
    context_nodes[part_of[r]] =
        MakeContextNode(api, shells[part_of[r]], part, data.substr(FolderOf(data).size()), id);
  }

  std::vector<std::unique_ptr<Compiled>> compiled;
  for (size_t i = 0; i < count; ++i) {
    compiled.push_back(MakeCompiled(runtime_, settings_, parts[i], shells[i]));
    compiled.back()->written = written_;
  }
  for (size_t i = 0; i < count; ++i) infos[i] = compiled[i].release();
}

std::string Ep::WriteContext(const std::string& model, const Constants& constants,
                             Referrer& referrer, std::vector<Recipe::FileRange>& ranges,
                             std::string& id) {
  Require(why_no_context_.empty(), why_no_context_);
  std::string path = context_.path;
  if (path.empty()) {
    Require(!model.empty() && !context_.compile_only,
            "ep.context_file_path must be given for a model without a file, and for one that is "
            "compiled into memory: the path where you will keep the compiled model, because its "
            "weights are written to a file beside it");
    path = model.substr(0, model.rfind('.')) + "_ctx.onnx";
  }
  const std::string data = path + ".aie";
  ContextWriter writer(data);
  std::vector<uint8_t> bytes;
  for (const Constants::Source& source : constants.sources()) {
    if (context_.weightless) {
      if (const auto range = referrer.Refer(source, writer)) {
        ranges.push_back(*range);
        continue;
      }
    }
    bytes.resize(static_cast<size_t>(source.tensor.bytes));
    constants.Fill(source, bytes.data());
    ranges.push_back(writer.Add(bytes.data(), source.tensor.bytes));
  }
  written_ = writer.Finish(referrer.text());
  id = writer.id();
  return data;
}

}  // namespace ort_aie::ep
