#include "graph/experts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/size.h"
#include "ops/format.h"
#include "ops/routing.h"
#include "ops/weights.h"

namespace ort_aie::graph {
namespace {

// A projection of QMoE, by the positions of its inputs. `points` are zero points, of FP4 a factor.
struct Projection {
  const char* name;
  size_t weights, scales, bias, points;
  const char* bits;
};
constexpr Projection kFc1 = {"fc1", 2, 3, 4, 11, "fc1_expert_weight_bits"};
constexpr Projection kFc2 = {"fc2", 5, 6, 7, 12, "fc2_expert_weight_bits"};
constexpr Projection kFc3 = {"fc3", 8, 9, 10, 13, "fc3_expert_weight_bits"};
constexpr size_t kFp4Factors = 4;  // from zero points to global scales, of which fc3 has none

// Inputs of formats other than integers; FP4 has the first two.
constexpr std::pair<size_t, const char*> kOtherFormats[] = {
    {15, "fc1_global_scale"}, {16, "fc2_global_scale"},    {17, "fc1_act_scale"},
    {18, "fc2_act_scale"},    {19, "fc1_act_block_scale"}, {20, "fc2_act_block_scale"}};

// Types of constants, by name and by their numbers in ONNX.
struct ConstantTypes {
  const char* names;
  std::array<int64_t, 3> numbers;
};

class Reader {
 public:
  Reader(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  Experts Read() {
    Experts experts;
    experts.why_not = WhyNot(experts);
    return experts;
  }

 private:
  bool Given(size_t input) const { return node_.input(input) != kAbsent; }
  const Value& value(size_t input) const { return graph_.value(node_.input(input)); }
  int64_t BitsOf(const Projection& projection) const {
    return node_.Int(projection.bits, node_.Int("expert_weight_bits", 4));
  }

  bool IsFp4() const { return node_.String("quant_type", "int") == "fp4"; }
  size_t PointsOf(const Projection& projection) const {
    return projection.points + (IsFp4() ? kFp4Factors : 0);
  }

  std::string WhyNotFormat() const {
    const std::string type = node_.String("quant_type", "int");
    if (type != "int" && !IsFp4()) return Concat("quant_type=", type, "; expected int or fp4");
    for (const auto& [input, name] : kOtherFormats) {
      const bool is_global = input == PointsOf(kFc1) || input == PointsOf(kFc2);
      if (Given(input) && !is_global) {
        return Concat("its input ", name, " belongs to other formats than ", type);
      }
    }
    if (IsFp4()) {
      for (const Projection& its : {kFc1, kFc2, kFc3}) {
        if (Given(its.points)) return Concat(its.name, " has zero points beside quant_type=fp4");
      }
      return Given(kFc3.weights) ? "fc3 has no global scale, which quant_type=fp4 needs" : "";
    }
    const int64_t prepacked = node_.Int("weights_prepacked", -1);
    if (prepacked != -1 && prepacked != 0) {
      return Concat("weights_prepacked=", prepacked, " is a CUDA layout; expected 0 or -1");
    }
    return "";
  }

  std::string WhyNotBits(const Projection& projection) const {
    const int64_t bits = BitsOf(projection);
    if (IsFp4()) return bits == 4 ? "" : Concat(projection.name, " has ", bits, " bits; FP4 has 4");
    if (q4nx::IsBits(bits)) return "";
    return Concat(projection.name, " has ", bits, " bits; Q2NX holds 2, Q4NX 4 and Q8NX 8");
  }

  std::string WhyNotBlocks() const {
    const int64_t block_size = BlockSize();
    if (block_size <= 0 || block_size % q4nx::kGroup == 0) return "";
    return Concat("block_size is ", block_size,
                  "; Q4NX shares a scale among 32 in-features and cannot hold it");
  }

  // QMoE takes router_probs of two dimensions only. aie.Q4NXMoE also takes (batch, sequence,
  // experts), because fusions/router.cc removes the Reshape before it.
  std::string WhyNotTokens() const {
    const auto rank = [&](size_t input) {
      const auto dims = graph_.KnownDims(node_.input(input));
      return dims ? dims->size() : 2;
    };
    if (rank(0) != 2 && rank(0) != 3) {
      return Concat("its input has ", rank(0), " dimensions; expected 2 or 3");
    }
    if (rank(1) == 2) return "";
    return Concat("its router_probs have ", rank(1), " dimensions; expected 2");
  }

  // The op's activation, or why there is none.
  std::string WhyNotActivation(Recipe::Step& step) const {
    const std::string type = node_.String("activation_type", "relu");
    const int64_t fusion = node_.Int("swiglu_fusion", 0);
    const bool has_fc3 = Given(kFc3.weights);
    if (type == "swiglu" || type == "geglu") {
      if (fusion < 0 || fusion > 2) {
        return Concat("swiglu_fusion=", fusion, "; expected 0, 1 or 2");
      }
      if (fusion != 0 && has_fc3) {
        return Concat("it has fc3 beside swiglu_fusion=", fusion, ", which has fc3 in fc1");
      }
      if (fusion == 0 && (type == "geglu" || !has_fc3)) {
        return Concat("activation_type=", type, " with swiglu_fusion=0 ",
                      type == "geglu" ? "is not defined" : "needs fc3");
      }
    }
    if (type == "swiglu") return WhyNotSwiglu(step);
    if (type != "geglu" && fusion != 0) {
      return Concat("activation_type=", type, " with swiglu_fusion=", fusion, "; expected 0");
    }
    const std::pair<const char*, const char*> kNames[] = {{"silu", "silu"},
                                                          {"gelu", "gelu_tanh"},
                                                          {"geglu", "gelu_tanh"},
                                                          {"relu", "relu"},
                                                          {"identity", "none"}};
    for (const auto& [name, ours] : kNames) {
      if (type == name) step.strings["activation"] = ours;
    }
    if (step.strings.contains("activation")) return "";
    return Concat("activation_type=", type,
                  "; expected swiglu, geglu, silu, gelu, relu or identity");
  }

  std::string WhyNotSwiglu(Recipe::Step& step) const {
    const float infinity = std::numeric_limits<float>::infinity();
    const float alpha = node_.Float("activation_alpha", 1.0f);
    const float beta = node_.Float("activation_beta", 0.0f);
    const float limit = node_.Float("swiglu_limit", infinity);
    if (!std::isfinite(alpha) || alpha == 0) {
      return Concat("activation_alpha=", alpha, "; expected a number other than 0");
    }
    if (alpha == 1 && beta == 0 && limit == infinity) {
      step.strings["activation"] = "silu";
      return "";
    }
    step.strings["activation"] = "swiglu";
    step.floats["alpha"] = alpha;
    step.floats["beta"] = beta;
    if (limit != infinity) {
      step.floats["limit"] = limit;
      if (node_.Int("swiglu_limit_after_activation", 0) == 1) step.ints["limit_after"] = 1;
    }
    return "";
  }

  bool IsFused() const {
    const std::string type = node_.String("activation_type", "relu");
    return (type == "swiglu" || type == "geglu") && node_.Int("swiglu_fusion", 0) != 0;
  }

  // Why a constant input does not have this type and shape; empty if it does.
  std::string WhyNotConstant(const Projection& projection, const char* what, size_t input,
                             const ConstantTypes& types, const Shape& shape) const {
    const Tensor& constant = value(input).constant;
    if (!constant) return Concat(projection.name, "'s ", what, " are not constant");
    const int64_t type = value(input).type;
    const bool fits = std::ranges::find(types.numbers, type) != types.numbers.end();
    if (fits && constant.shape == shape) return "";
    return Concat(projection.name, "'s ", what, " are ", TypeName(type), " ", constant.shape,
                  "; expected ", types.names, " ", shape);
  }

  // n (rows of one of `parts` of the matrix) and k of its weights.
  std::string WhyNotProjection(const Projection& projection, int64_t experts, int64_t n, int64_t k,
                               int64_t parts) const {
    constexpr ConstantTypes kBytes = {"UINT8", {2, 2, 2}}, kFactors = {"FLOAT", {1, 1, 1}},
                            kExponents = {"FLOAT8E8M0", {24, 24, 24}},
                            kFloats = {"FLOAT, FLOAT16 or BFLOAT16", {1, 10, 16}};
    const int64_t bits = BitsOf(projection), block_size = BlockSize();
    if (!(Size(experts) * n * parts * k * bits).InRange()) {
      return Concat(projection.name, " has more weights than fit in memory");
    }
    const int64_t rows = n * parts;
    if (k * bits % 8 != 0 || (block_size > 0 && k % block_size != 0)) {
      return Concat(projection.name, " has ", k, " in-features; expected a multiple of ",
                    block_size > 0 ? block_size : 8 / bits);
    }
    if (IsFp4() && rows % 2 != 0) {
      return Concat(projection.name, " has ", rows, " out-features; expected a multiple of 2");
    }
    const q4nx::ExpertLayout layout = {rows, 0, 1, n, k, bits, block_size};
    std::string why =
        WhyNotConstant(projection, "weights", projection.weights, kBytes,
                       IsFp4() ? Shape{experts, k, rows / 2} : Shape{experts, rows, k * bits / 8});
    if (why.empty() && !Given(projection.scales)) {
      why = Concat(projection.name, "'s scales are missing");
    }
    if (why.empty()) {
      const int64_t scales = q4nx::ExpertScales(layout) / rows;
      why = WhyNotConstant(projection, "scales", projection.scales, IsFp4() ? kExponents : kFloats,
                           block_size > 0 ? Shape{experts, rows, scales} : Shape{experts, rows});
    }
    if (why.empty() && IsFp4()) {
      if (!Given(PointsOf(projection)))
        return Concat(projection.name, "'s global scale is missing");
      why = WhyNotConstant(projection, "global scales", PointsOf(projection), kFactors, {experts});
    } else if (why.empty() && Given(projection.points)) {
      const int64_t bytes = q4nx::ExpertZeroPointBytes(layout);
      why = WhyNotConstant(
          projection, "zero points", projection.points, kBytes,
          block_size > 0 ? Shape{experts, rows, bytes / rows} : Shape{experts, bytes});
    }
    if (why.empty() && Given(projection.bias)) {
      why = WhyNotConstant(projection, "biases", projection.bias, kFloats, {experts, rows});
    }
    return why;
  }

  std::string WhyNot(Experts& experts) {
    Recipe::Step& step = experts.step;
    for (const std::string& why : {WhyNotFormat(), WhyNotBits(kFc1), WhyNotBits(kFc2),
                                   WhyNotBlocks(), WhyNotActivation(step)}) {
      if (!why.empty()) return why;
    }
    const bool has_fc3 = Given(kFc3.weights), fused = IsFused();
    if (has_fc3 && BitsOf(kFc3) != BitsOf(kFc1)) {
      return Concat("fc3 has ", BitsOf(kFc3), " bits, but fc1 has ", BitsOf(kFc1));
    }
    const char* const x = TypeName(value(0).type);
    if (!IsFloat(TypeOfNumber(value(0).type))) {
      return Concat("its input is ", x, "; expected FLOAT, FLOAT16 or BFLOAT16");
    }
    if (std::string why = WhyNotTokens(); !why.empty()) return why;
    const Tensor& fc1 = value(kFc1.weights).constant;
    const Tensor& fc2 = value(kFc2.weights).constant;
    if (!fc1 || !fc2) return "fc1's or fc2's weights are not constant";
    if (fc1.shape.size() != 3 || fc2.shape.size() != 3) {
      return Concat("fc1's weights are ", fc1.shape, ", and fc2's ", fc2.shape,
                    "; expected three dimensions");
    }
    const int64_t count = fc1.shape[0], parts = fused ? 2 : 1;
    const int64_t hidden = IsFp4() ? fc1.shape[1] : fc2.shape[1];
    const int64_t inter = IsFp4() ? fc2.shape[1] : fc1.shape[1] / parts;
    if (count <= 0 || hidden <= 0 || inter <= 0) {
      return Concat("fc1's weights are ", fc1.shape, ", and fc2's ", fc2.shape,
                    "; expected no empty dimension");
    }
    for (const std::string& why :
         {WhyNotProjection(kFc1, count, inter, hidden, parts),
          WhyNotProjection(kFc2, count, hidden, inter, 1),
          has_fc3 ? WhyNotProjection(kFc3, count, inter, hidden, 1) : std::string()}) {
      if (!why.empty()) return why;
    }
    if (count > kMostExperts) {
      return Concat("it has ", count, " experts; expected at most ", kMostExperts);
    }
    const int64_t k = node_.Int("k", 1);
    if (k < 1 || k > count) return Concat("k=", k, "; expected 1 to ", count, ", its experts");

    experts.count = count;
    step.ints["K"] = hidden;
    step.ints["N"] = inter;
    step.ints["experts"] = count;
    step.ints["top_k"] = k;
    const bool symmetric = !Given(kFc1.points) && !Given(kFc2.points) && !Given(kFc3.points);
    if (IsFp4()) {
      step.ints["format"] = kFormatOfFiles;
      step.strings["type"] = step.strings["down_type"] = q4nx::FileFormOf(FileType::kMXFP4).name;
    } else {
      StateForm(FormOf(kFc1, symmetric), step.ints);
      if (BitsOf(kFc2) != 4) step.ints["down_bits"] = BitsOf(kFc2);
    }
    step.ints["accuracy_level"] = node_.Int("accuracy_level", 0);
    step.ints["symmetric"] = symmetric ? 1 : 0;
    if (Given(kRouterWeightsInput) && node_.Int("normalize_routing_weights", 0) != 0) {
      step.ints["normalize"] = 1;
    }
    ReadConstants(experts, hidden, inter, has_fc3, fused, symmetric);
    return "";
  }

  // In-features that share a scale; 0: all of them.
  int64_t BlockSize() const {
    return IsFp4() ? q4nx::kGroup : std::max<int64_t>(0, node_.Int("block_size", 0));
  }

  // Group and minima are the same for all projections of a layer.
  WeightForm FormOf(const Projection& projection, bool symmetric) const {
    if (IsFp4()) return q4nx::FormOf(FileType::kMXFP4);
    const int64_t bits = BitsOf(projection);
    if (graph_.reads_in_place) return {q4nx::KindOfBits(bits)};
    const int64_t block_size = BlockSize();
    // One scale for a whole row holds for every group of it.
    return q4nx::SmallestForm(bits, block_size > 0 ? block_size : q4nx::kBlockCols, symmetric);
  }

  void ReadConstants(Experts& experts, int64_t hidden, int64_t inter, bool has_fc3, bool fused,
                     bool symmetric) {
    const int64_t block_size = BlockSize();
    const bool interleaved = fused && node_.Int("swiglu_fusion", 0) == 1;
    const auto layout = [&](const Projection& projection, int64_t part, int64_t n, int64_t k) {
      const int64_t parts = fused && &projection == &kFc1 ? 2 : 1;
      return q4nx::ExpertLayout{n * parts,
                                interleaved ? part : part * n,
                                interleaved && parts == 2 ? 2 : 1,
                                n,
                                k,
                                BitsOf(projection),
                                block_size,
                                FormOf(projection, symmetric)};
    };
    const auto weights = [&](const char* name, const Projection& projection,
                             const q4nx::ExpertLayout& its) {
      const size_t points = PointsOf(projection);
      experts.constants.push_back(ExpertConstant{
          name, static_cast<int>(projection.weights), static_cast<int>(projection.scales),
          Given(points) ? static_cast<int>(points) : kAbsent, its});
    };
    const auto bias = [&](const char* name, const Projection& projection,
                          const q4nx::ExpertLayout& its) {
      if (!Given(projection.bias)) return experts.constants.push_back(std::nullopt);
      experts.constants.push_back(
          ExpertConstant{name, static_cast<int>(projection.bias), kAbsent, kAbsent, its});
    };
    const q4nx::ExpertLayout gate = layout(kFc1, 0, inter, hidden);
    const q4nx::ExpertLayout down = layout(kFc2, 0, hidden, inter);
    const Projection& up_projection = fused ? kFc1 : kFc3;
    const q4nx::ExpertLayout up = layout(up_projection, fused ? 1 : 0, inter, hidden);
    weights("W_gate", kFc1, gate);
    weights("W_down", kFc2, down);
    if (fused || has_fc3) {
      weights("W_up", up_projection, up);
    } else {
      experts.constants.push_back(std::nullopt);
    }
    bias("bias_gate", kFc1, gate);
    if (fused || has_fc3) {
      bias("bias_up", up_projection, up);
    } else {
      experts.constants.push_back(std::nullopt);
    }
    bias("bias_down", kFc2, down);
  }

  const Graph& graph_;
  const Node& node_;
};

}  // namespace

Experts ReadExperts(const Graph& graph, const Node& node) { return Reader(graph, node).Read(); }

Tensor ExpertTensor(const Experts& experts, const ExpertConstant& constant) {
  const q4nx::ExpertLayout& layout = constant.layout;
  Tensor tensor{DataType::kFloat32, {experts.count, layout.n}, nullptr, true, 0};
  if (!constant.is_bias()) {
    const Shape blocks = BlocksShape(layout.n, layout.k, layout.form);
    tensor.type = DataType::kUint8;
    tensor.shape = {experts.count, blocks[0], blocks[1], blocks[2]};
  }
  tensor.bytes = ByteCount(tensor.type, tensor.shape).As("the weights of experts");
  return tensor;
}

}  // namespace ort_aie::graph
