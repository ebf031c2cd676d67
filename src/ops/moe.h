// aie.Q4NXMoE(X, router, W_gate, W_down, W_up?, bias_gate?, bias_up?, bias_down?, router_weights?)
// -> Y: com.microsoft.QMoE with its weights in blocks (docs/experts.md has the contract).
//   X                  (..., K) float, float16 or bfloat16
//   router             (rows, experts), or (..., experts) as X, of X's type: logits. Each row uses
//                      the `top_k` largest
//   W_gate, W_up       (experts, blocks of N x K): FC1 and FC3, or the halves of a fused FC1
//   W_down             (experts, blocks of K x N): FC2
//   bias_gate, bias_up (experts, N) float
//   bias_down          (experts, K) float
//   router_weights     (rows, experts); without it, the softmax of the chosen logits weights the
//                      experts
//   Y                  as X
// Attributes: K, N, experts, top_k; format, group and minima as for Q4NXMatMul; bits and type (of
// W_gate and W_up), down_bits and down_type; activation (silu, gelu_tanh, relu, none; with W_up
// also swiglu, with alpha, beta, limit and limit_after); normalize (of router_weights);
// accuracy_level and symmetric as for Q4NXMatMul.
#pragma once

#include <memory>
#include <string>

#include "ops/options.h"
#include "ops/plan.h"
#include "ops/weights.h"

namespace ort_aie {

// Far more than any model has. A routing counts its pairs of rows and experts in 32 bits.
inline constexpr int64_t kMostExperts = int64_t{1} << 16;

struct MoEAttributes {
  int64_t k = 0, n = 0, experts = 0, top_k = 0;
  WeightAttributes form = {};  // without k and n; bits and type are those of W_gate and W_up
  int64_t down_bits = 4;
  std::string down_type = {};
  int64_t accuracy_level = 0, symmetric = 0, normalize = 0;
  std::string activation;
  Swiglu swiglu = {};
};

class MoE {
 public:
  struct Weights {
    Tensor gate, down, up, gate_bias, up_bias, down_bias;  // up and biases may be absent
  };
  struct Inputs {
    Tensor x, router, router_weights;
  };

  MoE(const MoEAttributes& attributes, const Weights& weights, const Options& options);

  // Checks the inputs. Y is as X.
  void Check(const Inputs& inputs) const;
  void Append(const Inputs& inputs, void* y, Plan& plan) const;

 private:
  MoEStep step_{};  // without what a call gives
};

}  // namespace ort_aie
