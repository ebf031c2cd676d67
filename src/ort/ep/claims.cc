#include "ort/ep/claims.h"

#include <cstring>

#include "base/error.h"
#include "ops/eligibility.h"
#include "ort/ep/packed_weights.h"

namespace ort_aie::ep {
namespace {

constexpr char kMicrosoft[] = "com.microsoft";

std::string WhyNotMatMul(const Node& node) {
  MatMulNBitsNode facts;
  facts.k = node.Int("K", 0);
  facts.n = node.Int("N", 0);
  facts.bits = node.Int("bits", 4);
  facts.block_size = node.Int("block_size", 0);
  facts.weight_prepacked = node.Int("weight_prepacked", 0);
  facts.constant_weights = node.input(1).initializer && node.input(2).initializer &&
                           (!node.input(3) || node.input(3).initializer);
  facts.has_g_idx = static_cast<bool>(node.input(4));
  facts.type = node.input(0).type;
  if (node.input(3)) facts.zero_point_type = node.input(3).type;
  const std::string why_not = WhyNotQ4NX(facts);
  return why_not.empty() ? WhyMalformed(node) : why_not;
}

// Channels of a head of a GroupQueryAttention, or 0 where they are not known.
int64_t HeadDim(const Node& node) {
  const int64_t in_element = node.Int("kv_cache_bit_width", 0) == 4 ? 2 : 1;
  if (const int64_t cached = node.input(3).dim(3)) {
    return (Size(cached) * in_element).As("a head");
  }
  const int64_t heads = node.Int("num_heads", 0), kv_heads = node.Int("kv_num_heads", 0);
  const Size in_query = Size(heads) + Size(node.input(1) ? 0 : 2) * kv_heads;
  return 1 <= in_query ? node.input(0).dim(2) / in_query.As("a token") : 0;
}

std::string WhyNotAttention(const Node& node) {
  if (!node.output(1) || !node.output(2)) {
    return "outputs present_key and present_value are missing";
  }
  GroupQueryAttentionNode facts;
  facts.num_heads = node.Int("num_heads", 0);
  facts.kv_num_heads = node.Int("kv_num_heads", 0);
  facts.head_dim = HeadDim(node);
  facts.qk_output = node.Int("qk_output", 0);
  facts.causal = node.Int("causal", 1);
  facts.local_window_size = node.Int("local_window_size", -1);
  facts.k_quant_type = node.String("k_quant_type", "NONE");
  facts.v_quant_type = node.String("v_quant_type", "NONE");
  facts.kv_cache_bit_width = node.Int("kv_cache_bit_width", 0);
  facts.has_k_scale = static_cast<bool>(node.input(12));
  facts.has_v_scale = static_cast<bool>(node.input(13));
  facts.has_output_qk = static_cast<bool>(node.output(3));
  facts.has_query_seqlens = static_cast<bool>(node.input(16));
  facts.has_other_epsilons = node.Has("q_norm_epsilon") || node.Has("k_norm_epsilon");
  facts.type = node.input(0).type;
  facts.cache_type = (node.input(3) ? node.input(3) : node.output(1)).type;
  return WhyNotFlowAttention(facts);
}

// Whether a GatherBlockQuantized reads the weights of a MatMulNBits. ONNX Runtime may have folded a
// Reshape between them, so that the codes are a copy: they are compared.
bool IsTied(const Node& gather, const Node& projection) {
  const Tensor& data = gather.input(0).initializer;
  const Tensor& b = projection.input(1).initializer;
  return data && b && gather.input(2).name == projection.input(2).name &&
         gather.input(3).name == projection.input(3).name &&
         gather.Int("block_size", 128) == projection.Int("block_size", 0) && data.type == b.type &&
         data.bytes == b.bytes &&
         (data.data == b.data || std::memcmp(data.data, b.data, static_cast<size_t>(b.bytes)) == 0);
}

const Claim* TiedProjection(const Node& gather, const std::vector<Claim>& claims) {
  for (const Claim& claim : claims) {
    if (claim.kind == Kind::kMatMul && IsTied(gather, *claim.node)) return &claim;
  }
  return nullptr;
}

std::string WhyNotGather(const Node& node, const Claim* tied) {
  const Tensor& data = node.input(0).initializer;
  if (!data) return "its data is not constant";
  if (data.type != DataType::kUint8) {
    return Concat("its data is ", node.input(0).type, "; only uint8 with packed codes is shared");
  }
  if (tied == nullptr) {
    return "its weights are not tied to a MatMulNBits; the CPU EP gathers them as they are";
  }
  if (!tied->why_not.empty()) {
    return "the projection that it is tied to stays on the CPU EP: " + tied->why_not;
  }
  const int64_t bits = tied->node->Int("bits", 4);
  if (node.Int("bits", 4) != bits) {
    return Concat("its codes have ", node.Int("bits", 4), " bits, those of the projection ", bits);
  }
  if (node.Int("gather_axis", 0) != 0) return "gather_axis is not 0";
  const int64_t n = tied->node->Int("N", 0), k = tied->node->Int("K", 0);
  const int64_t block_size = tied->node->Int("block_size", 0);
  if (k % block_size != 0) {
    return Concat("K=", k, " is no multiple of block_size=", block_size);
  }
  if (data.shape != Shape{n, k * bits / 8}) {
    return Concat("its data is reshaped to something else than ", n, " rows");
  }
  return "";
}

}  // namespace

std::vector<Claim> ClaimNodes(const std::vector<Node>& nodes) {
  std::vector<Claim> claims;
  for (const Node& node : nodes) {
    if (node.Is(kMicrosoft, "MatMulNBits")) {
      claims.push_back({&node, Kind::kMatMul, WhyNotMatMul(node), &node});
    } else if (node.Is(kMicrosoft, "GroupQueryAttention")) {
      claims.push_back({&node, Kind::kAttention, WhyNotAttention(node)});
    } else if (node.Is(kMicrosoft, "GatherBlockQuantized")) {
      claims.push_back({&node, Kind::kGather, ""});
    }
  }
  for (Claim& claim : claims) {
    if (claim.kind != Kind::kGather) continue;
    const Claim* tied = TiedProjection(*claim.node, claims);
    claim.why_not = WhyNotGather(*claim.node, tied);
    if (tied != nullptr) claim.projection = tied->node;
  }
  return claims;
}

}  // namespace ort_aie::ep
