#include "graph/claims.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "graph/attention.h"
#include "graph/experts.h"
#include "graph/shapes.h"
#include "ops/eligibility.h"
#include "ops/flow_attention.h"
#include "ops/format.h"
#include "ops/weights.h"
#include "q4nx/layout.h"
#include "q4nx/pack.h"

namespace ort_aie::graph {
namespace {

using q4nx::CeilDiv;

constexpr char kMicrosoft[] = "com.microsoft";

bool IsFloatNumber(int64_t type) { return IsFloat(TypeOfNumber(type)); }

// The blocks of packed weights, without their bytes.
Tensor PackedTensor(int64_t n, int64_t k, const WeightForm& form) {
  Tensor blocks{DataType::kUint8, BlocksShape(n, k, form), nullptr, true, 0};
  blocks.bytes = q4nx::BytesOfBlocks<Size>(n, k, form).As("packed weights");
  return blocks;
}

// Decides which nodes of a graph become steps. Adds the weights that it packs to the graph's
// values.
class Claims {
 public:
  Claims(Graph& graph, bool sources) : graph_(graph), sources_(sources) {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (const int output : graph_.nodes[i].outputs) producer_[output] = static_cast<int>(i);
    }
  }

  std::vector<Item> All() {
    std::vector<Item> items = Each();
    ReadSharedCaches(graph_, items);
    ChooseProducts(graph_, items);
    return items;
  }

  std::vector<Item> Sources() {
    for_nodes_ = true;
    std::vector<Item> items = Each();
    std::erase_if(items, [&](const Item& item) { return !IsSource(node(item)); });
    return items;
  }

 private:
  std::vector<Item> Each() {
    std::vector<Item> items;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      InferMove(graph_, graph_.nodes[i]);
      items.push_back(ItemOf(static_cast<int>(i)));
      InferShapes(graph_, items.back().step);
    }
    if (sources_) ClaimTiedGathers(items);
    return items;
  }

  static bool IsSource(const Node& its) {
    return its.Is(kMicrosoft, "MatMulNBits") || its.Is(kMicrosoft, "QMoE") ||
           its.Is(kMicrosoft, "GroupQueryAttention") || its.Is(kMicrosoft, "GatherBlockQuantized");
  }

  const Value& value(int index) const { return graph_.value(index); }
  const Node& node(const Item& item) const {
    return graph_.nodes[static_cast<size_t>(item.nodes[0])];
  }

  Item ItemOf(int index) {
    const Node& its = graph_.nodes[static_cast<size_t>(index)];
    Item item{{index}};
    item.step.name = graph_.LabelOf(its);
    item.step.reads = its.inputs;
    item.step.writes = its.outputs;
    if (its.domain == "aie") {
      ClaimOwn(its, item);
    } else if (its.Is(kMicrosoft, "MatMulNBits")) {
      if (sources_) ClaimMatMul(its, item);
    } else if (its.Is(kMicrosoft, "QMoE")) {
      if (sources_) ClaimExperts(its, item);
    } else if (its.Is(kMicrosoft, "GroupQueryAttention")) {
      if (sources_) ClaimAttention(its, item);
    } else {
      ClaimVector(its, item);
    }
    RequireWhole(item);
    return item;
  }

  // A node that lacks an input or output that the op requires stays as it is.
  void RequireWhole(Item& item) const {
    const OpDescription* op = FindOp(item.step.op);
    if (op == nullptr) return;
    const auto check = [&](const char* what, const std::vector<int>& values, size_t required) {
      for (size_t i = 0; i < required; ++i) {
        if (i < values.size() && values[i] != kAbsent) continue;
        item.why_not = Concat("its ", what, " ", i, " is missing");
        return;
      }
    };
    check("input", item.step.reads, op->required_inputs);
    check("output", item.step.writes, op->required_outputs);
    if (item.why_not.empty()) return;
    item.step = {.op = "", .name = item.step.name};
    item.step.reads = node(item).inputs;
    item.step.writes = node(item).outputs;
  }

  void Become(Item& item, const char* op, std::vector<int> reads, std::vector<int> writes) const {
    const auto trim = [](std::vector<int>& values) {
      while (!values.empty() && values.back() == kAbsent) values.pop_back();
    };
    trim(reads);
    trim(writes);
    item.step.op = op;
    item.step.ints["format"] = kFormat;
    item.step.reads = std::move(reads);
    item.step.writes = std::move(writes);
  }

  // --- aie nodes ---

  bool IsStandIn(int index) const {
    const Tensor& constant = value(index).constant;
    return constant && constant.type == DataType::kFloat32 && constant.shape == Shape{0};
  }

  void ClaimOwn(const Node& its, Item& item) const {
    const OpDescription* op = FindOp(its.op_type);
    if (op == nullptr) return;
    std::vector<int> reads = its.inputs;
    for (int& read : reads) {
      if (read != kAbsent && IsStandIn(read)) read = kAbsent;
    }
    CopyAttributes(its, *op, item);
    Become(item, op->name, std::move(reads), its.outputs);
    item.step.ints["format"] = its.Int("format", 0);
  }

  // Whether an attribute of attention has the value that it has by default. ONNX Runtime writes out
  // all of them, models few. So that both doors give the same recipe, a recipe has none of these.
  static bool SaysNothing(const Node& its, const char* attribute) {
    static const std::map<std::string_view, Attribute> kDefaults = {
        {"causal", int64_t{1}},
        {"do_rotary", int64_t{0}},
        {"k_quant_type", "NONE"},
        {"kv_cache_bit_width", int64_t{0}},
        {"local_window_size", int64_t{-1}},
        {"mrope_height", int64_t{0}},
        {"mrope_interleaved", int64_t{0}},
        {"mrope_width", int64_t{0}},
        {"norm_after_rotary", int64_t{0}},
        {"position_axes", int64_t{0}},
        {"qk_norm_epsilon", FlowAttention::kDefaultEpsilon},
        {"qk_output", int64_t{0}},
        {"rotary_interleaved", int64_t{0}},
        {"sliding_window_cache", int64_t{0}},
        {"smooth_softmax", int64_t{-1}},
        {"softcap", 0.0f},
        {"v_quant_type", "NONE"}};
    const auto known = kDefaults.find(attribute);
    return known != kDefaults.end() && its.attributes.find(attribute)->second == known->second;
  }

  void CopyAttributes(const Node& its, const OpDescription& op, Item& item) const {
    for (const AttributeRule& rule : op.attributes) {
      if (!its.Has(rule.name) || (!for_nodes_ && SaysNothing(its, rule.name))) continue;
      switch (rule.kind) {
        case AttributeRule::kInt:
          item.step.ints[rule.name] = its.Int(rule.name, 0);
          break;
        case AttributeRule::kFloat:
          item.step.floats[rule.name] = its.Float(rule.name, 0.0f);
          break;
        case AttributeRule::kString:
          item.step.strings[rule.name] = its.String(rule.name, "");
          break;
      }
    }
  }

  // --- sources ---

  KnownShapes ShapesOf(const Node& its) const {
    KnownShapes shapes;
    for (size_t i = 0; i < its.inputs.size(); ++i) {
      if (its.input(i) == kAbsent) continue;
      shapes[static_cast<int64_t>(i)] = graph_.KnownDims(its.input(i));
    }
    return shapes;
  }

  // The name of the first type that is known, of values of the same type.
  const char* TypeOf(std::initializer_list<int> values) const {
    const auto known = std::ranges::find_if(values, [&](int index) { return value(index).type; });
    return TypeName(known != values.end() ? value(*known).type : 0);
  }

  // Without `with_tensors`, the reasons in attributes, and in which inputs there are.
  std::string WhyNotMatMul(const Node& its, bool with_tensors) const {
    MatMulNBitsNode facts;
    facts.k = its.Int("K", 0);
    facts.n = its.Int("N", 0);
    facts.bits = its.Int("bits", 4);
    facts.block_size = its.Int("block_size", 0);
    facts.weight_prepacked = its.Int("weight_prepacked", 0);
    facts.constant_weights = value(its.input(1)).constant && value(its.input(2)).constant &&
                             (its.input(3) == kAbsent || value(its.input(3)).constant);
    facts.has_g_idx = its.input(4) != kAbsent;
    facts.type = TypeOf({its.input(0), its.input(2)});
    if (its.input(3) != kAbsent) facts.zero_point_type = TypeName(value(its.input(3)).type);
    if (with_tensors) {
      facts.b_type = TypeName(value(its.input(1)).type);
      facts.scale_type = TypeName(value(its.input(2)).type);
      facts.shapes = ShapesOf(its);
    }
    return WhyNotQ4NX(facts);
  }

  // The value that holds the packed weights of a MatMulNBits.
  int PackedOf(int matmul) {
    const auto [known, is_new] =
        packed_.try_emplace(matmul, static_cast<int>(graph_.values.size()));
    if (!is_new) return known->second;
    const Node& its = graph_.nodes[static_cast<size_t>(matmul)];
    Value packed;
    packed.name = Concat("the weights of '", graph_.LabelOf(its), "'");
    packed.type = kOnnxUint8;
    packed.packed_from = matmul;
    packed.packed_form = FormOf(its);
    packed.constant = PackedTensor(its.Int("N", 0), its.Int("K", 0), packed.packed_form);
    graph_.values.push_back(std::move(packed));
    return known->second;
  }

  // Without zero points, each is 2^(bits - 1). That times the scale is exact.
  static bool IsSymmetric(const Node& matmul) { return matmul.input(3) == kAbsent; }

  WeightForm FormOf(const Node& matmul) const {
    const int64_t bits = matmul.Int("bits", 4);
    const WeightForm smallest =
        q4nx::SmallestForm(bits, matmul.Int("block_size", 0), IsSymmetric(matmul));
    const bool reads = !graph_.reads_in_place || graph_.reads_in_place(smallest);
    return reads ? smallest : WeightForm{q4nx::KindOfBits(bits)};
  }

  void StateWeights(const Node& matmul, Item& item) const {
    item.step.ints["K"] = matmul.Int("K", 0);
    item.step.ints["N"] = matmul.Int("N", 0);
    StateForm(FormOf(matmul), item.step.ints);
  }

  void ClaimMatMul(const Node& its, Item& item) {
    item.why_not = WhyNotMatMul(its, false);
    if (!item.why_not.empty()) return;
    item.why_not = WhyNotMatMul(its, true);
    item.malformed = !item.why_not.empty();
    if (item.malformed) return;
    const std::vector<int> reads = {its.input(0), PackedOf(item.nodes[0]), its.input(5)};
    Become(item, "Q4NXMatMul", reads, {its.output(0)});
    StateWeights(its, item);
    item.step.ints["accuracy_level"] = its.Int("accuracy_level", 0);
    item.step.ints["symmetric"] = IsSymmetric(its) ? 1 : 0;
  }

  void ClaimExperts(const Node& its, Item& item) {
    const Experts experts = ReadExperts(graph_, its);
    item.why_not = experts.why_not;
    if (!item.why_not.empty()) return;
    std::vector<int> reads = {its.input(0), its.input(1)};
    for (size_t i = 0; i < experts.constants.size(); ++i) {
      const auto& constant = experts.constants[i];
      reads.push_back(constant ? static_cast<int>(graph_.values.size()) : kAbsent);
      if (!constant) continue;
      Value packed;
      packed.name = Concat(constant->name, " of '", graph_.LabelOf(its), "'");
      packed.constant = ExpertTensor(experts, *constant);
      packed.type = NumberOf(packed.constant.type);
      packed.packed_from = item.nodes[0];
      packed.packed_part = static_cast<int>(i);
      graph_.values.push_back(std::move(packed));
    }
    reads.push_back(its.input(kRouterWeightsInput));
    item.step.ints = experts.step.ints;
    item.step.floats = experts.step.floats;
    item.step.strings = experts.step.strings;
    const int64_t format = item.step.ints.at("format");
    Become(item, "Q4NXMoE", std::move(reads), {its.output(0)});
    item.step.ints["format"] = format;
  }

  // The last dimension of three, also of a projection whose input has no shape; 0 if it is not
  // known.
  int64_t WidthOf(int index) const {
    const auto maker = producer_.find(index);
    if (graph_.FixedDim(index, 2) != 0 || index == kAbsent || maker == producer_.end()) {
      return graph_.FixedDim(index, 2);
    }
    const Node& its = graph_.nodes[static_cast<size_t>(maker->second)];
    if (its.Is(kMicrosoft, "MatMulNBits") || its.Is("aie", "Q4NXMatMul") || its.Is("aie", "GEMM")) {
      return its.Int("N", 0);
    }
    // A bias, or a norm over all of the dimension.
    if (!its.Is("", "Add") && !its.Is("", "SimplifiedLayerNormalization")) return 0;
    for (const size_t input : {0, 1}) {
      const Tensor& vector = value(its.input(input)).constant;
      if (vector && vector.shape.size() == 1) return vector.shape[0];
    }
    return 0;
  }

  // Channels of a head of a GroupQueryAttention, or 0 if they are not known.
  int64_t HeadDim(const Node& its) const {
    const int64_t in_element = its.Int("kv_cache_bit_width", 0) == 4 ? 2 : 1;
    for (const int cache : {its.input(FlowAttention::kPastKey), its.output(1)}) {
      const int64_t cached = graph_.FixedDim(cache, 3);
      if (cached != 0) return (Size(cached) * in_element).As("a head");
    }
    const int64_t heads = its.Int("num_heads", 0), kv_heads = its.Int("kv_num_heads", 0);
    const Size in_query =
        Size(heads) + Size(its.input(FlowAttention::kKey) != kAbsent ? 0 : 2) * kv_heads;
    return 1 <= in_query ? WidthOf(its.input(FlowAttention::kQuery)) / in_query.As("a token") : 0;
  }

  // GroupQueryAttention's inputs are the first of FlowAttention's, except for one.
  static constexpr int kQuerySeqlens = FlowAttention::kAttentionMask;

  std::string WhyNotAttention(const Node& its) const {
    GroupQueryAttentionNode facts;
    facts.num_heads = its.Int("num_heads", 0);
    facts.kv_num_heads = its.Int("kv_num_heads", 0);
    facts.head_dim = HeadDim(its);
    facts.qk_output = its.Int("qk_output", 0);
    facts.causal = its.Int("causal", 1);
    facts.local_window_size = its.Int("local_window_size", -1);
    facts.k_quant_type = its.String("k_quant_type", "NONE");
    facts.v_quant_type = its.String("v_quant_type", "NONE");
    facts.kv_cache_bit_width = its.Int("kv_cache_bit_width", 0);
    facts.has_k_scale = its.input(FlowAttention::kKScale) != kAbsent;
    facts.has_v_scale = its.input(FlowAttention::kVScale) != kAbsent;
    facts.has_output_qk = its.output(3) != kAbsent;
    facts.has_query_seqlens = its.input(kQuerySeqlens) != kAbsent;
    facts.has_other_epsilons = its.Has("q_norm_epsilon") || its.Has("k_norm_epsilon");
    const int query = its.input(FlowAttention::kQuery), past = its.input(FlowAttention::kPastKey);
    facts.type = TypeOf({query, its.input(FlowAttention::kCosCache), past});
    facts.cache_type = TypeOf({past, its.output(1), query});
    facts.do_rotary = its.Int("do_rotary", 0);
    facts.sliding_window_cache = its.Int("sliding_window_cache", 0);
    facts.has_present_key = its.output(1) != kAbsent;
    facts.has_present_value = its.output(2) != kAbsent;
    facts.shapes = ShapesOf(its);
    return WhyNotFlowAttention(facts);
  }

  void ClaimAttention(const Node& its, Item& item) const {
    item.why_not = WhyNotAttention(its);
    if (!item.why_not.empty()) return;
    CopyAttributes(its, *FindOp("FlowAttention"), item);
    Become(item, "FlowAttention", its.inputs, {its.output(0), its.output(1), its.output(2)});
  }

  // The codes of a GatherBlockQuantized, before a Reshape of them.
  int CodesOf(const Node& gather) const {
    const auto maker = producer_.find(gather.input(0));
    if (gather.input(0) == kAbsent || maker == producer_.end()) return gather.input(0);
    const Node& its = graph_.nodes[static_cast<size_t>(maker->second)];
    // One whose sizes are no vector is an error in ONNX Runtime, whatever shape the model declares.
    const bool right = its.Is("", "Reshape") && value(its.input(1)).constant.shape.size() == 1;
    return right ? its.input(0) : gather.input(0);
  }

  // Whether a GatherBlockQuantized reads the weights of a MatMulNBits. ONNX Runtime may have folded
  // a Reshape between them, which makes the codes a copy, so their bytes are compared.
  bool IsTied(const Node& gather, const Node& projection) const {
    const auto same = [&](size_t gather_input, size_t projection_input) {
      const Value &a = value(gather.input(gather_input)),
                  &b = value(projection.input(projection_input));
      return a.name == b.name;
    };
    const Tensor& data = value(CodesOf(gather)).constant;
    const Tensor& b = value(projection.input(1)).constant;
    return data && b && same(2, 2) && same(3, 3) &&
           gather.Int("block_size", 128) == projection.Int("block_size", 0) &&
           data.type == b.type && data.bytes == b.bytes &&
           (CodesOf(gather) == projection.input(1) ||
            (data.data != nullptr && b.data != nullptr &&
             std::memcmp(data.data, b.data, static_cast<size_t>(b.bytes)) == 0));
  }

  std::string WhyNotGather(const Node& its, const Item* tied) const {
    const Value& codes = value(CodesOf(its));
    if (!codes.constant) return "its data is not constant";
    if (codes.constant.type != DataType::kUint8) {
      return Concat("its data is ", TypeName(codes.type),
                    "; only uint8 with packed codes is shared");
    }
    if (tied == nullptr) {
      return "its weights are not tied to a MatMulNBits; the CPU EP gathers them as they are";
    }
    if (!tied->why_not.empty()) {
      return "the projection that it is tied to stays on the CPU EP: " + tied->why_not;
    }
    const Node& projection = node(*tied);
    const int64_t bits = projection.Int("bits", 4);
    if (its.Int("bits", 4) != bits) {
      return Concat("its codes have ", its.Int("bits", 4),
                    " bits, but those of the projection have ", bits);
    }
    if (its.Int("gather_axis", 0) != 0) return "gather_axis is not 0";
    const int64_t n = projection.Int("N", 0), k = projection.Int("K", 0);
    const int64_t block_size = projection.Int("block_size", 0);
    if (k % block_size != 0) {
      return Concat("K=", k, " is not a multiple of block_size=", block_size);
    }
    if (graph_.KnownDims(its.input(0)) != std::vector<int64_t>{n, k * bits / 8}) {
      return Concat("its data is reshaped to something other than ", n, " rows");
    }
    // A MatMulNBits takes these in one dimension as well.
    for (const size_t input : {2, 3}) {
      const Tensor& constant = value(its.input(input)).constant;
      if (constant && constant.shape.size() != 2) {
        return Concat("its ", input == 2 ? "scales" : "zero_points", " are ", constant.shape,
                      "; expected two dimensions");
      }
    }
    return "";
  }

  void ClaimTiedGathers(std::vector<Item>& items) {
    for (Item& item : items) {
      if (!node(item).Is(kMicrosoft, "GatherBlockQuantized")) continue;
      const auto tied = std::ranges::find_if(items, [&](const Item& other) {
        return node(other).Is(kMicrosoft, "MatMulNBits") && IsTied(node(item), node(other));
      });
      const Item* projection = tied != items.end() ? &*tied : nullptr;
      item.why_not = WhyNotGather(node(item), projection);
      if (!item.why_not.empty()) continue;
      const int packed = PackedOf(projection->nodes[0]);
      const Node& its = node(item);
      Become(item, "Q4NXGather", {packed, its.input(1)}, {its.output(0)});
      StateWeights(node(*projection), item);
      item.step.ints["dtype"] = value(its.input(2)).type;
      RequireWhole(item);
    }
  }

  // --- the nodes between projections ---
  // Those that only a model's masks and positions have, of whole numbers or of other shapes, are no
  // candidates, and stay without a reason: norms alone have one.

  void ClaimVector(const Node& its, Item& item) const {
    if (its.op_type == "SimplifiedLayerNormalization" || its.op_type == "RMSNormalization") {
      if (its.domain.empty()) ClaimNorm(its, item, kAbsent, its.input(1), 2, 1e-5f);
    } else if (its.Is(kMicrosoft, "SkipSimplifiedLayerNormalization")) {
      ClaimNorm(its, item, its.input(1), its.input(2), 3, 1e-12f);
    } else if (its.Is(kMicrosoft, "GatedRMSNorm")) {
      ClaimGatedNorm(its, item);
    } else if (its.op_type == "CausalConvWithState") {
      ClaimConv(its, item);
    } else if (its.op_type == "LinearAttention") {
      ClaimLinearAttention(its, item);
    } else if (its.Is(kMicrosoft, "LinearAttentionGate")) {
      ClaimGate(its, item);
    } else if (its.Is(kMicrosoft, "GatedDeltaNet")) {
      ClaimDeltaNet(its, item);
    } else if (its.op_type == "SwiGLU") {
      ClaimSwiglu(its, item);
    } else if (its.Is("", "MatMul")) {
      ClaimNarrow(its, item);
    } else if (its.Is("", "Add") || its.Is("", "Mul")) {
      ClaimBinary(its, item);
    } else if (its.Is("", "Gather")) {
      ClaimTable(its, item);
    } else if (its.Is("", "Cast")) {
      ClaimCast(its, item);
    } else if (its.Is("", "GatherND")) {
      ClaimSelection(its, item);
    } else if (its.domain == kMicrosoft && kElsewhere.contains(its.op_type)) {
      item.why_not = Concat("ONNX Runtime has no ", its.op_type,
                            " on the CPU, so there is nothing to hold a step against");
    } else if (its.Is(kMicrosoft, "VarlenCausalConvWithState")) {
      item.why_not = kOwnLengths;
    } else if (const std::string function = FunctionOf(its); !function.empty()) {
      if (!IsFloatNumber(value(its.input(0)).type)) return;
      Become(item, "Activation", {its.input(0)}, {its.output(0)});
      item.step.strings["function"] = function;
    }
  }

  // Operators of ONNX Runtime 1.32 that it has no kernel for on the CPU.
  inline static const std::set<std::string_view> kElsewhere = {
      "ConvStateReplay",      "GatedDeltaNetStateReplay", "Mamba2Verify",   "MatMulNBitsMlp",
      "MatMulNBitsQLoRA",     "MatMulNBitsQkv",           "PagedAttention", "RMSNormRotary",
      "SparsePagedAttention", "SpeculativePrefixCommit"};

  static std::string FunctionOf(const Node& its) {
    if (its.Is("", "Sigmoid")) return "sigmoid";
    if (its.Is("", "LpNormalization")) {
      return its.Int("axis", -1) == -1 && its.Int("p", 2) == 2 ? "unit" : "";
    }
    if (its.Is("", "Gelu")) {
      const std::string approximate = its.String("approximate", "none");
      return approximate == "tanh" ? "gelu_tanh" : approximate == "none" ? "gelu" : "";
    }
    if (its.Is(kMicrosoft, "Gelu")) return "gelu";
    if (its.Is(kMicrosoft, "FastGelu")) return its.input(1) == kAbsent ? "gelu_tanh" : "";
    if (its.Is(kMicrosoft, "QuickGelu")) return its.Float("alpha", 1.702f) == 1.0f ? "silu" : "";
    return "";
  }

  // `others` is the position of the first input that must be absent.
  void ClaimNorm(const Node& its, Item& item, int skip, int weight, size_t others,
                 float epsilon) const {
    const Value &a = value(its.input(0)), &scale = value(weight);
    item.why_not = WhyNotNorm(its, a, scale, others);
    if (!item.why_not.empty()) return;
    // An unknown dimension may be 1, which would broadcast.
    const int64_t k = scale.shape && scale.shape->size() == 1 ? scale.shape->front().value : -1;
    if (k <= 1) {
      const bool known = scale.shape.has_value();
      item.why_not = Concat("its scale is ", known ? Dims(*scale.shape) : "of unknown shape",
                            "; a step needs a scale of shape (K)");
      return;
    }
    if (skip != kAbsent && (a.type != value(skip).type || !SameShape(a, value(skip)))) {
      item.why_not = "its skip differs from its input in type or shape";
      return;
    }
    const bool has_sum =
        skip != kAbsent && its.output(3) != kAbsent && graph_.IsRead(its.output(3));
    const int sum = has_sum ? its.output(3) : kAbsent;
    Become(item, "RMSNorm", {its.input(0), weight, skip}, {its.output(0), sum});
    item.step.ints["K"] = k;
    item.step.floats["epsilon"] = its.Float("epsilon", epsilon);
  }

  std::string WhyNotNorm(const Node& its, const Value& a, const Value& scale, size_t others) const {
    if (its.Int("axis", -1) != -1) {
      return Concat("its axis is ", its.Int("axis", -1), "; a step normalises the last one, -1");
    }
    if (its.Int("stash_type", 1) != 1) {
      return Concat("its stash_type is ", its.Int("stash_type", 1), "; a step sums in float, 1");
    }
    if (!IsFloatNumber(a.type) || a.type != scale.type) {
      return Concat("its input is ", TypeName(a.type), " and its scale ", TypeName(scale.type),
                    "; a step needs both in one type of float, float16 or bfloat16");
    }
    for (size_t i = others; i < its.inputs.size(); ++i) {
      if (its.input(i) != kAbsent) return "it has a bias";
    }
    for (const size_t i : {1, 2}) {
      if (its.output(i) != kAbsent && graph_.IsRead(its.output(i))) {
        return Concat("another node reads its output ", i, ", which a step does not have");
      }
    }
    return "";
  }

  void ClaimGatedNorm(const Node& its, Item& item) const {
    const Value &a = value(its.input(0)), &scale = value(its.input(1)), &gate = value(its.input(2));
    const std::string activation = its.String("activation", "silu");
    item.why_not = WhyNotGatedNorm(a, scale, gate, activation);
    if (!item.why_not.empty()) return;
    const int64_t k = scale.shape->front().value;
    Become(item, "GatedRMSNorm", {its.input(0), its.input(1), its.input(2)}, {its.output(0)});
    item.step.ints["K"] = k;
    item.step.floats["epsilon"] = its.Float("epsilon", 1e-5f);
    item.step.strings["activation"] = activation == "sigmoid" ? "sigmoid" : "silu";
  }

  static std::string WhyNotGatedNorm(const Value& a, const Value& scale, const Value& gate,
                                     std::string_view activation) {
    if (!IsFloatNumber(a.type) || a.type != scale.type || a.type != gate.type) {
      return "its input, scale and gate are not of one type of float, float16 or bfloat16";
    }
    if (!SameShape(a, gate)) return "its gate does not have the shape of its input";
    if (!scale.shape || scale.shape->size() != 1 || scale.shape->front().value < 1 ||
        a.shape->empty() || a.shape->back().value < 1 ||
        a.shape->back().value % scale.shape->front().value != 0) {
      return "its scale does not have the shape (K), where K divides the last dimension";
    }
    if (activation != "silu" && activation != "swish" && activation != "sigmoid") {
      return Concat("its activation is ", activation, "; a step has silu, swish or sigmoid");
    }
    return "";
  }

  // --- recurrences ---

  // Whether these have one type, which a step has; absent ones do not count.
  bool OfOneType(std::initializer_list<int> values) const {
    const int64_t type = value(*values.begin()).type;
    return IsFloatNumber(type) && std::ranges::all_of(values, [&](int index) {
             return index == kAbsent || value(index).type == type;
           });
  }
  bool HasRank(int index, size_t rank) const {
    return value(index).shape && value(index).shape->size() == rank;
  }
  static constexpr char kOwnLengths[] = "its sequences have lengths of their own; a step has one";
  static constexpr char kOneType[] = "its inputs are not of one type of float, float16 or bfloat16";

  void ClaimConv(const Node& its, Item& item) const {
    item.why_not = WhyNotConv(its);
    if (!item.why_not.empty()) return;
    Become(item, "CausalConv", its.inputs, {its.output(0), its.output(1)});
    item.step.ints["taps"] = graph_.FixedDim(its.input(1), 2);
    const std::string activation = its.String("activation", "none");
    item.step.strings["activation"] = activation == "none" ? "none" : "silu";
  }

  std::string WhyNotConv(const Node& its) const {
    for (const auto& [name, usual] : {std::pair("ndim", 1),
                                      {"dilation", 1},
                                      {"channels_last", 0},
                                      {"state_window", 0},
                                      {"state_update_capacity", 0},
                                      {"state_channels_last", -1},
                                      {"state_length", 0},
                                      {"input_channels", 0},
                                      {"input_channel_offset", 0}}) {
      const int64_t given = its.Int(name, usual);
      if (given != usual) return Concat("its ", name, " is ", given, "; a step has ", usual);
    }
    const std::string activation = its.String("activation", "none");
    if (activation != "none" && activation != "silu" && activation != "swish") {
      return Concat("its activation is ", activation, "; a step has none, silu or swish");
    }
    if (!OfOneType({its.input(0), its.input(1), its.input(2), its.input(3)})) return kOneType;
    if (!HasRank(its.input(0), 3) || !HasRank(its.input(1), 3) ||
        graph_.FixedDim(its.input(1), 2) < 1) {
      return "the shape of its input or of its kernel is not known";
    }
    return "";
  }

  void ClaimLinearAttention(const Node& its, Item& item) const {
    item.why_not = WhyNotLinearAttention(its);
    if (!item.why_not.empty()) return;
    const std::string rule = its.String("update_rule", "gated_delta");
    const bool decays = rule.starts_with("gated"), learns = rule.ends_with("delta");
    Become(item, "LinearAttention",
           {its.input(0), its.input(1), its.input(2), its.input(3), decays ? its.input(4) : kAbsent,
            learns ? its.input(5) : kAbsent},
           {its.output(0), its.output(1)});
    for (const char* heads : {"q_num_heads", "kv_num_heads"}) {
      item.step.ints[heads] = its.Int(heads, 0);
    }
    item.step.floats["scale"] = its.Float("scale", 0.0f);
  }

  std::string WhyNotLinearAttention(const Node& its) const {
    const std::string rule = its.String("update_rule", "gated_delta");
    if (rule != "linear" && rule != "gated" && rule != "delta" && rule != "gated_delta") {
      return Concat("its update_rule is ", rule);
    }
    if (its.Int("state_window", 0) != 0) {
      return Concat("its state_window is ", its.Int("state_window", 0), "; a step has 0");
    }
    if ((rule.starts_with("gated") && its.input(4) == kAbsent) ||
        (rule.ends_with("delta") && its.input(5) == kAbsent)) {
      return Concat("its decay or beta is missing, which ", rule, " has");
    }
    const int64_t q = its.Int("q_num_heads", 0), kv = its.Int("kv_num_heads", 0);
    if (q < 1 || kv < 1 || std::max(q, kv) % std::min(q, kv) != 0) {
      return Concat("neither of its heads, ", q, " and ", kv, ", is a multiple of the other");
    }
    if (!OfOneType({its.input(0), its.input(1), its.input(2), its.input(4), its.input(5)})) {
      return kOneType;
    }
    if (its.input(3) != kAbsent && !IsFloatNumber(value(its.input(3)).type)) {
      return Concat("its state is ", TypeName(value(its.input(3)).type));
    }
    return "";
  }

  void ClaimGate(const Node& its, Item& item) const {
    const bool right = OfOneType({its.input(0), its.input(3)}) &&
                       value(its.input(1)).type == kOnnxFloat &&
                       value(its.input(2)).type == kOnnxFloat;
    if (!right) {
      item.why_not = kOneType;
      return;
    }
    Become(item, "LinearAttentionGate", its.inputs, {its.output(0), its.output(1)});
  }

  void ClaimDeltaNet(const Node& its, Item& item) const {
    item.why_not = WhyNotDeltaNet(its);
    if (!item.why_not.empty()) return;
    Become(item, "GatedDeltaNet",
           {its.input(0), its.input(1), its.input(2), its.input(6), its.input(4), its.input(5),
            its.input(7), its.input(8)},
           {its.output(0), its.output(1)});
    const std::string gate = its.String("gate_activation", "none");
    if (gate == "softplus" || gate == "qwen") item.step.strings["gate"] = "softplus";
    if (gate == "sigmoid" || gate == "kda") {
      item.step.strings["gate"] = "sigmoid";
      item.step.floats["lower_bound"] = its.Float("gate_lower_bound", -5.0f);
    }
    if (its.String("beta_activation", "none") == "sigmoid") item.step.ints["sigmoid"] = 1;
    if (its.Int("qk_l2_norm", 0) != 0) item.step.ints["unit"] = 1;
    item.step.floats["scale"] = its.Float("scale", 0.0f);
  }

  std::string WhyNotDeltaNet(const Node& its) const {
    const std::string rule = its.String("update_rule", "gated_delta");
    const std::string gate = its.String("gate_activation", "none");
    const std::string beta = its.String("beta_activation", "none");
    if (rule != "linear" && rule != "gated" && rule != "delta" && rule != "gated_delta") {
      return Concat("its update_rule is ", rule);
    }
    if (its.input(1) == kAbsent || its.input(2) == kAbsent) {
      return "its query holds keys and values too; a step has three tensors";
    }
    if (its.input(3) != kAbsent) {
      return kOwnLengths;
    }
    if (its.Int("state_update_capacity", 0) != 0) {
      return Concat("its state_update_capacity is ", its.Int("state_update_capacity", 0),
                    "; a step has 0");
    }
    if (rule.starts_with("gated") == (its.input(4) == kAbsent) ||
        rule.ends_with("delta") == (its.input(5) == kAbsent)) {
      return Concat("its decay and beta are not those that ", rule, " has");
    }
    static const std::set<std::string_view> kGates = {"none", "softplus", "qwen", "sigmoid", "kda"};
    if (!kGates.contains(gate) || (beta != "none" && beta != "sigmoid")) {
      return Concat("its gate_activation is ", gate, " and its beta_activation ", beta);
    }
    if (gate != "none" &&
        (its.input(4) == kAbsent || its.input(7) == kAbsent || its.input(8) == kAbsent)) {
      return Concat("its decay, a_log or dt_bias is missing, which ", gate, " needs");
    }
    if (!OfOneType({its.input(0), its.input(1), its.input(2)}) ||
        (its.input(4) != kAbsent && !OfOneType({its.input(4), its.input(5)}))) {
      return kOneType;
    }
    return "";
  }

  // ONNX's, of opset 28, and com.microsoft's, which can do more.
  void ClaimSwiglu(const Node& its, Item& item) const {
    const char* alpha = its.domain.empty() ? "alpha" : "activation_alpha";
    if (its.input(1) == kAbsent) {
      item.why_not = "its gate and its up are one tensor";
    } else if (its.Float(alpha, 1.0f) != 1.0f) {
      item.why_not = Concat("its ", alpha, " is ", its.Float(alpha, 1.0f), "; a step has 1");
    } else if (its.Float("limit", 0.0f) > 0 || its.Float("activation_beta", 0.0f) != 0 ||
               its.Int("round_activation", 0) != 0) {
      item.why_not = "it has a limit, an activation_beta or a round_activation";
    } else if (!OfOneType({its.input(0), its.input(1)})) {
      item.why_not = kOneType;
    } else {
      Become(item, "SwiGLU", {its.input(0), its.input(1)}, {its.output(0)});
    }
  }

  // A wider one is quantised, or left.
  void ClaimNarrow(const Node& its, Item& item) const {
    const Value &a = value(its.input(0)), &weights = value(its.input(1));
    if (!weights.constant || weights.constant.shape.size() != 2 || !a.shape || a.shape->empty()) {
      return;
    }
    const int64_t k = weights.constant.shape[0], n = weights.constant.shape[1];
    if (!OfOneType({its.input(0), its.input(1)}) || a.shape->back().value != k) return;
    if (k < 1 || n < 1 || n > kMostNarrowColumns) return;
    Become(item, "NarrowMatMul", {its.input(0), its.input(1)}, {its.output(0)});
    item.step.ints["K"] = k;
    item.step.ints["N"] = n;
  }

  static std::string Dims(const std::vector<Dim>& shape) {
    std::string text = "(";
    for (const Dim& dim : shape) {
      if (text.size() > 1) text += ", ";
      text += dim.value >= 0 ? std::to_string(dim.value) : dim.name.empty() ? "?" : dim.name;
    }
    return text + ")";
  }

  // Whether b can be applied to each element of a: it has a's shape, or is a row or a single value.
  static bool Meets(const Value& a, const Value& b) {
    if (!IsFloatNumber(a.type) || a.type != b.type || !a.shape || !b.shape) return false;
    if (a.shape->empty()) return b.shape->empty();
    if (SameShape(a, b)) return true;
    if (b.shape->size() > a.shape->size()) return false;
    const auto is_one = [](const Dim& dim) { return dim.value == 1; };
    if (std::ranges::all_of(*b.shape, is_one)) return true;
    const int64_t k = a.shape->back().value;
    return k > 1 && b.shape->back().value == k &&
           std::all_of(b.shape->begin(), b.shape->end() - 1, is_one);
  }

  void ClaimBinary(const Node& its, Item& item) const {
    int a = its.input(0), b = its.input(1);
    if (!Meets(value(a), value(b))) std::swap(a, b);
    if (!Meets(value(a), value(b))) return;
    Become(item, its.op_type == "Add" ? "Add" : "Mul", {a, b}, {its.output(0)});
  }

  void ClaimTable(const Node& its, Item& item) const {
    const Value &table = value(its.input(0)), &indices = value(its.input(1));
    const bool rows =
        table.constant && IsFloatNumber(table.type) && table.constant.shape.size() == 2;
    if (!rows || its.Int("axis", 0) != 0) return;
    if (indices.type != kOnnxInt32 && indices.type != kOnnxInt64) return;
    Become(item, "Gather", {its.input(0), its.input(1)}, {its.output(0)});
  }

  // One row of each batch row. The passes select rows like this when only some logits are wanted.
  void ClaimSelection(const Node& its, Item& item) const {
    const Value &a = value(its.input(0)), &indices = value(its.input(1));
    if (its.Int("batch_dims", 0) != 1 || indices.type != kOnnxInt64) return;
    if (!IsFloatNumber(a.type) || !a.shape || a.shape->size() != 3) return;
    const auto& dims = indices.shape;
    if (!dims || dims->size() != 3 || (*dims)[1].value != 1 || (*dims)[2].value != 1) return;
    Become(item, "SelectRows", {its.input(0), its.input(1)}, {its.output(0)});
  }

  void ClaimCast(const Node& its, Item& item) const {
    const int64_t to = its.Int("to", 0);
    if (!IsFloatNumber(value(its.input(0)).type) || !IsFloatNumber(to)) return;
    Become(item, "Cast", {its.input(0)}, {its.output(0)});
    item.step.ints["dtype"] = to;
  }

  Graph& graph_;
  const bool sources_;
  bool for_nodes_ = false;       // items become nodes, not steps of a recipe
  std::map<int, int> packed_;    // by MatMulNBits
  std::map<int, int> producer_;  // of a value: a node
};

}  // namespace

Steps ClaimSteps(Graph graph, bool sources) {
  std::vector<Item> items = Claims(graph, sources).All();
  return Steps(std::move(graph), std::move(items));
}

Steps ClaimSources(Graph graph) {
  std::vector<Item> items = Claims(graph, true).Sources();
  return Steps(std::move(graph), std::move(items));
}

bool IsAnchor(const Item& item) {
  const OpDescription* op = FindOp(item.step.op);
  return op != nullptr && op->anchor;
}

}  // namespace ort_aie::graph
