#include "ort/ep/ep.h"

#include <cstring>
#include <vector>

#include "ops/format.h"
#include "ops/options.h"
#include "ort/custom_op.h"
#include "ort/ep/claims.h"
#include "ort/ep/packed_weights.h"

namespace ort_aie::ep {
namespace {

std::optional<std::string> Find(const Settings& settings, const char* name) {
  const auto found = settings.find(name);
  if (found == settings.end()) return std::nullopt;
  return found->second;
}

// What an op of the custom-op door asks of its node, answered by the node that it stands for.
class ClaimedNode final : public NodeInfo {
 public:
  // `known` are attributes that the op has and the node has not, or not in this form.
  ClaimedNode(const Node& node, const Settings& settings, std::map<std::string, int64_t> known,
              Tensor weights, size_t weights_index)
      : node_(node),
        settings_(settings),
        known_(std::move(known)),
        weights_(std::move(weights)),
        weights_index_(weights_index) {}

  int64_t Int(const char* attribute, int64_t fallback) const override {
    const auto found = known_.find(attribute);
    return found != known_.end() ? found->second : node_.Int(attribute, fallback);
  }
  float Float(const char* attribute, float fallback) const override {
    return node_.Float(attribute, fallback);
  }
  std::string String(const char* attribute) const override { return node_.String(attribute, ""); }
  Tensor ConstantInput(size_t index) const override {
    return index == weights_index_ ? weights_ : Tensor{};
  }
  std::optional<std::string> ConfigEntry(const char* name) const override {
    return Find(settings_, name);
  }

 private:
  const Node& node_;
  const Settings& settings_;
  const std::map<std::string, int64_t> known_;
  const Tensor weights_;
  const size_t weights_index_;
};

// A claimed node, ready to run.
struct Compiled : OrtNodeComputeInfo {
  const OrtApi* api = nullptr;
  std::unique_ptr<Kernel> kernel;
  IoMap map;
  std::shared_ptr<const PackedWeights> weights;
  std::vector<uint8_t> bias;  // a constant that ONNX Runtime no longer keeps
};

// Positions of the fused node's values by name.
std::map<std::string, int> Positions(const std::vector<Value>& values) {
  std::map<std::string, int> positions;
  for (const Value& value : values) {
    if (value) positions.emplace(value.name, static_cast<int>(positions.size()));
  }
  return positions;
}

int PositionOf(const std::map<std::string, int>& positions, const Value& value) {
  const auto found = positions.find(value.name);
  return value && found != positions.end() ? found->second : IoMap::kAbsent;
}

}  // namespace

Ep::Ep(const RuntimeApi& runtime, const OrtLogger* logger, Settings settings)
    : OrtEp{}, runtime_(runtime), logger_(logger), settings_(std::move(settings)) {
  for (const auto& [name, value] : settings_) {
    Require(name == "target" || name == "numerics", "provider option '", name,
            "' is unknown; expected target or numerics");
  }
  ReadOptions([this](const char* name) { return Find(settings_, name); });

  ort_version_supported = runtime.version;
  OrtEp::GetName = [](const OrtEp*) noexcept { return kName; };
  OrtEp::GetCapability = [](OrtEp* self, const OrtGraph* graph,
                            OrtEpGraphSupportInfo* info) noexcept -> OrtStatus* {
    const auto* ep = static_cast<const Ep*>(self);
    return Guard(ep->runtime_.api, [&] { ep->ClaimAll(graph, info); });
  };
  OrtEp::Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode** fused, size_t count,
                      OrtNodeComputeInfo** infos, OrtNode**) noexcept -> OrtStatus* {
    const auto* ep = static_cast<const Ep*>(self);
    return Guard(ep->runtime_.api, [&] { ep->CompileAll(graphs, fused, count, infos); });
  };
  OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i) delete static_cast<Compiled*>(infos[i]);
  };
}

void Ep::Log(OrtLoggingLevel level, const std::string& message) const {
  Check(runtime_.api, runtime_.api->Logger_LogMessage(logger_, level, message.c_str(), __FILE__,
                                                      __LINE__, kName));
}

void Ep::ClaimAll(const OrtGraph* graph, OrtEpGraphSupportInfo* info) const {
  const OrtApi* api = runtime_.api;
  const std::vector<Node> nodes = NodesOf(api, graph);
  for (const Claim& claim : ClaimNodes(nodes)) {
    if (!claim.why_not.empty()) {
      Log(ORT_LOGGING_LEVEL_INFO, Concat("node '", claim.node->name(), "' stays on another ",
                                         "execution provider: ", claim.why_not));
      continue;
    }
    OrtNodeFusionOptions options{};
    options.ort_version_supported = runtime_.version;
    // Packed weights are ours; cos and sin of attention are inputs like any other.
    options.drop_constant_initializers = claim.kind != Kind::kAttention;
    const OrtNode* node = claim.node->get();
    Check(api, api->GetEpApi()->EpGraphSupportInfo_AddNodesToFuse(info, &node, 1, &options));
  }
}

void Ep::CompileAll(const OrtGraph* const* graphs, const OrtNode* const* fused, size_t count,
                    OrtNodeComputeInfo** infos) const {
  const OrtApi* api = runtime_.api;
  std::vector<Node> nodes;
  for (size_t i = 0; i < count; ++i) {
    std::vector<Node> group = NodesOf(api, graphs[i]);
    Require(group.size() == 1, "expected one node in a fused graph, got ", group.size());
    nodes.push_back(std::move(group[0]));
  }
  const std::vector<Claim> claims = ClaimNodes(nodes);
  std::vector<std::shared_ptr<const PackedWeights>> weights(count);
  std::vector<const Node*> projections(count);  // whose weights a node reads
  // Projections first: tied embeddings read their weights.
  for (size_t i = 0; i < count; ++i) {
    if (claims[i].kind != Kind::kMatMul) continue;
    weights[i] = PackMatMul(nodes[i]);
    projections[i] = &nodes[i];
  }
  for (size_t i = 0; i < count; ++i) {
    if (claims[i].kind != Kind::kGather) continue;
    for (size_t j = 0; j < count; ++j) {
      if (claims[j].kind != Kind::kMatMul || !IsTied(nodes[i], nodes[j])) continue;
      weights[i] = weights[j];
      projections[i] = &nodes[j];
    }
  }
  std::vector<std::unique_ptr<Compiled>> compiled;
  for (size_t i = 0; i < count; ++i) {
    const Node& node = nodes[i];
    const Node shell(api, fused[i]);
    const auto inputs = Positions(shell.inputs()), outputs = Positions(shell.outputs());
    auto& c = compiled.emplace_back(std::make_unique<Compiled>());
    c->api = api;
    c->weights = weights[i];
    for (const Value& output : node.outputs()) {
      c->map.outputs.push_back(PositionOf(outputs, output));
    }
    const auto from = [&](const Value& value) {
      return IoMap::Input{PositionOf(inputs, value), {}};
    };
    const OpDescription* op = nullptr;
    size_t weights_index = 1;
    switch (claims[i].kind) {
      case Kind::kMatMul: {
        op = &Q4NXMatMulDescription();
        c->map.inputs = {from(node.input(0)), {}, from(node.input(5))};
        const Tensor& bias = node.input(5).initializer;
        if (bias) {
          const auto size = static_cast<size_t>(ElementCount(bias.shape)) * SizeOf(bias.type);
          c->bias.assign(bias.as<uint8_t>(), bias.as<uint8_t>() + size);
          c->map.inputs[2] = {IoMap::kAbsent, bias};
          c->map.inputs[2].constant.data = c->bias.data();
        }
        break;
      }
      case Kind::kGather:
        op = &Q4NXGatherDescription();
        weights_index = 0;
        c->map.inputs = {{}, from(node.input(1))};
        break;
      case Kind::kAttention:
        op = &FlowAttentionDescription();
        for (const Value& input : node.inputs()) c->map.inputs.push_back(from(input));
        break;
    }
    std::map<std::string, int64_t> known = {{"format", kFormat}};
    if (projections[i] != nullptr) {
      known["K"] = projections[i]->Int("K", 0);
      known["N"] = projections[i]->Int("N", 0);
      // Without zero points each is 8, and -8 * scale is exact.
      known["symmetric"] = projections[i]->input(3) ? 0 : 1;
      known["dtype"] = ToOnnxType(node.input(2).initializer.type);
    }
    const ClaimedNode info(node, settings_, std::move(known),
                           c->weights ? c->weights->blocks : Tensor{}, weights_index);
    try {
      c->kernel = op->create(info);
    } catch (const Error& error) {
      throw Error(error.code(), Concat("node '", node.name(), "': ", error.what()));
    }
    c->ort_version_supported = runtime_.version;
    c->CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*,
                        void** state) noexcept -> OrtStatus* {
      *state = self;
      return nullptr;
    };
    c->Compute = [](OrtNodeComputeInfo* self, void*,
                    OrtKernelContext* context) noexcept -> OrtStatus* {
      const auto& node = *static_cast<const Compiled*>(self);
      return Guard(node.api,
                   [&] { node.kernel->Compute(KernelContext(node.api, context, &node.map)); });
    };
    c->ReleaseState = [](OrtNodeComputeInfo*, void*) noexcept {};
  }
  for (size_t i = 0; i < count; ++i) infos[i] = compiled[i].release();
}

}  // namespace ort_aie::ep
