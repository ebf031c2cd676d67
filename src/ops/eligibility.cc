#include "ops/eligibility.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/size.h"
#include "ops/flow_attention.h"
#include "q4nx/layout.h"

namespace ort_aie {
namespace {

bool IsFloatName(const std::string& type) {
  return type == "FLOAT" || type == "FLOAT16" || type == "BFLOAT16";
}

// Why the library does not have such a KV cache.
std::string WhyNotCache(const GroupQueryAttentionNode& node) {
  const std::string& type = node.cache_type;
  if (node.k_quant_type == "NONE" && node.v_quant_type == "NONE") {
    if (node.kv_cache_bit_width != 0 || node.has_k_scale || node.has_v_scale) {
      return "kv_cache_bit_width, k_scale or v_scale is given without k_quant_type and "
             "v_quant_type";
    }
    if (IsFloatName(type)) return "";
    return Concat("its KV cache is ", type, "; expected FLOAT, FLOAT16 or BFLOAT16");
  }
  for (const std::string& quantised : {node.k_quant_type, node.v_quant_type}) {
    if (quantised != "PER_TENSOR" && quantised != "PER_CHANNEL") {
      return Concat("k_quant_type=", node.k_quant_type, " with v_quant_type=", node.v_quant_type,
                    "; expected PER_TENSOR or PER_CHANNEL for both, or NONE");
    }
  }
  const int64_t bits = node.kv_cache_bit_width;
  if (bits != 8 && bits != 4) return Concat("kv_cache_bit_width=", bits, "; expected 8 or 4");
  if (!node.has_k_scale || !node.has_v_scale) {
    return "its KV cache is quantised, but k_scale or v_scale is missing";
  }
  const char* expected = bits == 8 ? "INT8" : "UINT8";
  if (type == expected) return "";
  return Concat("its KV cache is ", type, "; expected ", expected,
                " for kv_cache_bit_width=", bits);
}

// Checks what is known of the shapes of a node's inputs: a dimension that cannot be what is
// expected is a reason.
class InputShapes {
 protected:
  InputShapes(const KnownShapes& shapes, std::span<const char* const> names)
      : shapes_(shapes), names_(names) {}

  bool Has(int64_t input) const { return shapes_.contains(input); }

  const std::optional<KnownShape>& Of(int64_t input) const {
    static const std::optional<KnownShape> none;
    const auto found = shapes_.find(input);
    return found != shapes_.end() ? found->second : none;
  }

  const char* NameOf(int64_t input) const { return names_[static_cast<size_t>(input)]; }

  void Refuse(std::string why) {
    if (why_not_.empty()) why_not_ = std::move(why);
  }

  static std::string Text(const KnownShape& shape) {
    std::string text = "(";
    for (const int64_t dim : shape) {
      text += (text.size() > 1 ? ", " : "") + (dim < 0 ? "?" : std::to_string(dim));
    }
    return text + ")";
  }

  static bool Fits(const KnownShape& shape, const KnownShape& expected) {
    return std::ranges::equal(shape, expected, [](int64_t dim, int64_t wanted) {
      return dim < 0 || wanted < 0 || dim == wanted;
    });
  }

  void Expect(int64_t input, const KnownShape& expected) {
    const auto& shape = Of(input);
    if (!shape || Fits(*shape, expected)) return;
    Refuse(Concat("its ", NameOf(input), " is ", Text(*shape), "; expected ", Text(expected)));
  }

  const KnownShapes& shapes_;
  const std::span<const char* const> names_;
  std::string why_not_;
};

// A MatMulNBits, as ONNX Runtime 1.32 checks it; 1.23 takes B of any shape, by its bytes alone.
class MatMulNBitsShapes : InputShapes {
 public:
  explicit MatMulNBitsShapes(const MatMulNBitsNode& node)
      : InputShapes(node.shapes, kInputs), node_(node) {}

  std::string WhyNot() {
    const int64_t n = node_.n, blocks = q4nx::CeilDiv(node_.k, node_.block_size);
    Expect(1, {n, blocks, node_.block_size * node_.bits / 8});
    ExpectRows(2, blocks);
    const bool packed = node_.zero_point_type == "UINT8";
    ExpectRows(3, packed ? q4nx::CeilDiv(blocks * node_.bits, int64_t{8}) : blocks);
    Expect(5, {n});
    return why_not_;
  }

 private:
  static constexpr std::array kInputs = {"A", "B", "scales", "zero_points", "g_idx", "bias"};

  // (N, columns), or the same values in one dimension.
  void ExpectRows(int64_t input, int64_t columns) {
    const auto& shape = Of(input);
    const int64_t count = (Size(node_.n) * columns).As("values");
    if (shape && shape->size() == 1 && Fits(*shape, {count})) return;
    Expect(input, {node_.n, columns});
  }

  const MatMulNBitsNode& node_;
};

// Checks what is known of a GroupQueryAttention's inputs as the kernel checks the whole
// (flow_attention.cc): a dimension that cannot be what is expected, or not that of another input,
// is a reason.
class AttentionShapes : InputShapes {
 public:
  explicit AttentionShapes(const GroupQueryAttentionNode& node)
      : InputShapes(node.shapes, FlowAttention::kInputNames),
        node_(node),
        packed_(!Has(FlowAttention::kKey)) {}

  // Whether the cache is another attention's: no new keys.
  bool SharesCache() const {
    return Has(FlowAttention::kPastKey) && Dim(FlowAttention::kKey, 1) == 0;
  }

  std::string WhyNot() {
    using F = FlowAttention;
    if (node_.shapes.empty()) return "";
    const int64_t dim = node_.head_dim, heads = node_.num_heads, kv_heads = node_.kv_num_heads;
    const int64_t batch = FirstKnown(
        {{F::kQuery, 0}, {F::kKey, 0}, {F::kValue, 0}, {F::kPastKey, 0}, {F::kPastValue, 0}});
    const int64_t rows = Dim(F::kQuery, 1);
    Together(F::kKey, F::kValue);
    Together(F::kPastKey, F::kPastValue);
    const int64_t kv_channels = Number(Size(kv_heads) * dim);
    const Size all_heads = Size(heads) + Size(packed_ ? 2 : 0) * kv_heads;
    Expect(F::kQuery, {batch, rows, Number(all_heads * dim)});
    const int64_t new_rows = SharesCache() || Dim(F::kValue, 1) == 0 ? 0 : rows;
    Expect(F::kKey, {batch, new_rows, kv_channels});
    Expect(F::kValue, {batch, new_rows, kv_channels});
    if (SharesCache() && node_.sliding_window_cache == 1) {
      Refuse("key has no rows, which a cache with sliding_window_cache=1 needs");
    }
    const int64_t capacity = FirstKnown({{F::kPastKey, 2}, {F::kPastValue, 2}});
    const int64_t width = node_.kv_cache_bit_width == 4 ? dim / 2 : dim;
    Expect(F::kPastKey, {batch, kv_heads, capacity, width});
    Expect(F::kPastValue, {batch, kv_heads, capacity, width});
    ExpectCount(F::kSeqlensK, batch);
    if (const auto& total = Of(F::kTotalSequenceLength); total && !total->empty()) {
      Expect(F::kTotalSequenceLength, {1});
    }
    if (node_.do_rotary == 1) ExpectRotary();
    // A first prompt may have one position alone.
    if (Of(F::kPositionIds) != KnownShape{1}) Expect(F::kPositionIds, {batch, rows});
    if (const auto& bias = Of(F::kAttentionBias)) {
      const auto one_or = [&](size_t axis, int64_t expected) {
        return bias->size() == 4 && (*bias)[axis] == 1 ? 1 : expected;
      };
      Expect(F::kAttentionBias, {one_or(0, batch), one_or(1, heads), one_or(2, rows), -1});
    }
    Expect(F::kHeadSink, {heads});
    ExpectCount(F::kKScale, node_.k_quant_type == "PER_CHANNEL" ? kv_channels : 1);
    ExpectCount(F::kVScale, node_.v_quant_type == "PER_CHANNEL" ? kv_channels : 1);
    Expect(F::kQNormWeight, {dim});
    Expect(F::kKNormWeight, {dim});
    return why_not_;
  }

 private:
  // -1 if it is not known.
  int64_t Dim(int64_t input, size_t axis) const {
    const auto& shape = Of(input);
    return shape && axis < shape->size() ? (*shape)[axis] : -1;
  }

  int64_t FirstKnown(std::initializer_list<std::pair<int64_t, size_t>> places) const {
    for (const auto& [input, axis] : places) {
      if (const int64_t known = Dim(input, axis); known >= 0) return known;
    }
    return -1;
  }

  // For a size out of range, a number that no dimension has.
  static int64_t Number(Size size) {
    return size.InRange() ? size.As("channels") : std::numeric_limits<int64_t>::max();
  }

  void Together(int64_t a, int64_t b) {
    if (Has(a) == Has(b)) return;
    Refuse(Concat("its inputs ", NameOf(a), " and ", NameOf(b), " go together"));
  }

  // One dimension or several; only the number of elements counts.
  void ExpectCount(int64_t input, int64_t expected) {
    const auto& shape = Of(input);
    if (!shape || expected < 0 || std::ranges::any_of(*shape, [](int64_t d) { return d < 0; })) {
      return;
    }
    Size count = 1;
    for (const int64_t dim : *shape) count = count * dim;
    if (count == expected) return;
    Refuse(
        Concat("its ", NameOf(input), " is ", Text(*shape), "; expected ", expected, " elements"));
  }

  void ExpectRotary() {
    using F = FlowAttention;
    Together(F::kCosCache, F::kSinCache);
    if (!Has(F::kCosCache)) Refuse("do_rotary=1 needs cos_cache and sin_cache");
    const int64_t positions = FirstKnown({{F::kCosCache, 0}, {F::kSinCache, 0}});
    const int64_t width = FirstKnown({{F::kCosCache, 1}, {F::kSinCache, 1}});
    Expect(F::kCosCache, {positions, width});
    Expect(F::kSinCache, {positions, width});
    if (width == 0 || width > node_.head_dim / 2) {
      Refuse(Concat("its cos_cache rotates ", width, " pairs of the ", node_.head_dim,
                    " channels of a head"));
    }
  }

  const GroupQueryAttentionNode& node_;
  const bool packed_;
};

}  // namespace

std::string WhyNotQ4NX(const MatMulNBitsNode& node) {
  if (!q4nx::IsBits(node.bits)) {
    return Concat("weights have ", node.bits, " bits; Q2NX holds 2, Q4NX 4 and Q8NX 8");
  }
  if (node.block_size == 16) {
    return Concat("block_size is 16; Q", node.bits,
                  "NX shares a scale among 32 in-features and cannot hold it");
  }
  if (node.block_size != 32 && node.block_size != 64 && node.block_size != 128 &&
      node.block_size != 256) {
    return Concat("block_size is ", node.block_size, "; expected 32, 64, 128 or 256");
  }
  if (node.k <= 0 || node.n <= 0) return Concat("K=", node.k, " N=", node.n, " must be positive");
  if (node.weight_prepacked != 0) {
    return Concat("weight_prepacked=", node.weight_prepacked, " is a CUDA layout");
  }
  if (node.has_g_idx) return "g_idx permutes the groups, which Q4NX cannot express";
  if (!node.constant_weights) return "B, scales or zero_points are not constant";
  if (!IsFloatName(node.type)) {
    return Concat("A is ", node.type, "; expected FLOAT, FLOAT16 or BFLOAT16");
  }
  const std::string& points = node.zero_point_type;
  if (!points.empty() && points != "UINT8" && !IsFloatName(points)) {
    return Concat("zero_points are ", points, "; expected UINT8, FLOAT, FLOAT16 or BFLOAT16");
  }
  if (node.bits == 8 && IsFloatName(points)) {
    return Concat("zero_points are ", points, "; with 8 bits they must be UINT8");
  }
  if (!node.b_type.empty() && node.b_type != "UINT8") {
    return Concat("B is ", node.b_type, "; expected UINT8");
  }
  const std::string& scales = node.scale_type;
  if (!scales.empty() && !IsFloatName(scales)) {
    return Concat("scales are ", scales, "; expected FLOAT, FLOAT16 or BFLOAT16");
  }
  if (!(Size(node.n) * node.k * node.bits).InRange()) {
    return Concat("K=", node.k, " N=", node.n, ": more weights than fit in memory");
  }
  return MatMulNBitsShapes(node).WhyNot();
}

std::string WhyNotFloatMatMul(const FloatMatMulNode& node) {
  if (!node.constant_weights) return "its second input is not a constant, so there are no weights";
  if (node.weights.size() != 2) {
    return Concat("its weights have ", node.weights.size(), " dimensions; expected (K, N)");
  }
  if (!IsFloatName(node.type)) {
    return Concat("its weights are ", node.type, "; expected FLOAT, FLOAT16 or BFLOAT16");
  }
  if (node.trans_a != 0) return "transA is not 0: its activations are transposed";
  if (node.alpha != 1 || node.beta != 1) {
    return Concat("alpha=", node.alpha, " beta=", node.beta, " must both be 1");
  }
  if (!node.bias_fits) return "its C is not a constant vector of N";
  const int64_t k = node.weights[0], n = node.weights[1];
  if (k < q4nx::kGroup || n < q4nx::kBlockRows) {
    return Concat("K=", k, " N=", n, ": less than 32 either way is mostly padding");
  }
  return "";
}

std::string WhyNotFlowAttention(const GroupQueryAttentionNode& node) {
  AttentionShapes shapes(node);
  if (node.has_present_key != node.has_present_value) {
    return "its outputs present_key and present_value go together";
  }
  if (!node.has_present_key && !shapes.SharesCache()) {
    return "outputs present_key and present_value are missing";
  }
  if (node.has_output_qk || node.qk_output != 0) {
    return "output_qk asks for the score matrix, which chunked attention never holds";
  }
  if (node.has_query_seqlens) {
    return "query_seqlens pads chunks of a prompt on the right, which FlowAttention does not "
           "support";
  }
  if (node.has_other_epsilons) {
    return "q_norm_epsilon and k_norm_epsilon are separate; FlowAttention has one qk_norm_epsilon";
  }
  if (node.num_heads <= 0 || node.kv_num_heads <= 0 || node.num_heads % node.kv_num_heads != 0) {
    return Concat("num_heads=", node.num_heads,
                  " is not a multiple of kv_num_heads=", node.kv_num_heads);
  }
  if (node.head_dim <= 0) return "the number of channels of a head is not known before it runs";
  if (node.head_dim % 8 != 0) {
    return Concat("heads have ", node.head_dim, " channels; expected a multiple of 8");
  }
  if (node.causal == 0 && node.local_window_size > 0) {
    return "a window without causal attention is not defined";
  }
  if (!IsFloatName(node.type)) {
    return Concat("its query is ", node.type, "; expected FLOAT, FLOAT16 or BFLOAT16");
  }
  const std::string why_not = WhyNotCache(node);
  return why_not.empty() ? shapes.WhyNot() : why_not;
}

}  // namespace ort_aie
