#include "ops/eligibility.h"

#include "base/error.h"
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
  return "";
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
  return WhyNotCache(node);
}

}  // namespace ort_aie
