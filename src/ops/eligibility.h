// Which ONNX nodes become aie.* nodes, and why others do not (for QMoE, graph/experts.h decides).
// Both doors ask here: by graph/claims.cc, and the graph passes for patterns of other operators. An
// empty reason means that the node becomes one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace ort_aie {

// The dimensions of a tensor as far as they are known: -1 for one that is not.
using KnownShape = std::vector<int64_t>;
// By position of an input; nothing for a number of dimensions that is not known. An input that is
// absent, or not to be checked, is left out.
using KnownShapes = std::map<int64_t, std::optional<KnownShape>>;

struct MatMulNBitsNode {
  int64_t k = 0, n = 0, bits = 4, block_size = 0, weight_prepacked = 0;
  bool constant_weights = true;  // B, scales and zero_points are initializers
  bool has_g_idx = false;
  std::string type;                          // of A, by its ONNX name: FLOAT, FLOAT16, BFLOAT16
  std::string zero_point_type;               // likewise, or UINT8 if packed; empty if absent
  std::string b_type = {}, scale_type = {};  // likewise; empty: not to be checked
  KnownShapes shapes = {};
};
std::string WhyNotQ4NX(const MatMulNBitsNode& node);

// A MatMul or Gemm of float weights, which can be quantised or become an aie.GEMM.
struct FloatMatMulNode {
  bool constant_weights = true;
  std::vector<int64_t> weights;  // shape of the second input, as (K, N)
  std::string type;
  int64_t trans_a = 0;  // Gemm's attributes
  float alpha = 1, beta = 1;
  bool bias_fits = true;  // Gemm's C is absent, or constant and (N)
};
std::string WhyNotFloatMatMul(const FloatMatMulNode& node);
// Up to so many columns, a float MatMul is a step as it is: one for each head of a recurrence.
inline constexpr int64_t kMostNarrowColumns = 64;

struct GroupQueryAttentionNode {
  int64_t num_heads = 0, kv_num_heads = 0, qk_output = 0, causal = 1, local_window_size = -1;
  int64_t head_dim = 0;  // 0: not known, which is a reason to refuse
  std::string k_quant_type = "NONE", v_quant_type = "NONE";
  int64_t kv_cache_bit_width = 0;
  bool has_k_scale = false, has_v_scale = false;
  bool has_output_qk = false;
  bool has_query_seqlens = false, has_other_epsilons = false;  // ONNX Runtime 1.32
  std::string type, cache_type;
  int64_t do_rotary = 0, sliding_window_cache = 0;
  bool has_present_key = true, has_present_value = true;
  KnownShapes shapes = {};
};
std::string WhyNotFlowAttention(const GroupQueryAttentionNode& node);

}  // namespace ort_aie
