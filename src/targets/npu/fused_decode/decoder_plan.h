// A plan as one token through a whole decoder, part by part: the work of a fused decode in one
// dispatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/plan.h"
#include "targets/npu/fused_decode/geometry.h"

namespace ort_aie::fused_decode {

// The steps of a plan. The plan must outlive this.
struct DecoderPlan {
  struct Layer {
    std::vector<const MatMulStep*> qkv = {};  // one for all three, or one each
    const AttentionStep* attention = nullptr;
    const MatMulStep *o = nullptr, *mlp = nullptr, *down = nullptr;
    std::vector<const void*> norms = {};  // in the order of the model
  };

  size_t first = 0;                    // the steps before it make the embedding
  const void* x = nullptr;             // the embedding of the token
  DataType type = DataType::kFloat32;  // of x, norms, logits
  std::vector<Layer> layers = {};
  const void* last_norm = nullptr;
  const MatMulStep* head = nullptr;

  // Tokens in the context, including this one.
  int64_t length() const { return layers.front().attention->total_length[0]; }
};

// Why an overlay cannot do the plan, in words; empty if it can. `positions` is the longest context
// of the overlay. With `any_epsilon`, norms may have another epsilon than the overlay's. Fills
// `decoder`.
std::string WhyNot(const Plan& plan, const Geometry& geometry, int64_t positions, bool any_epsilon,
                   DecoderPlan& decoder);

// Whether the plan is a single token through a decoder, so that WhyNot makes sense.
bool IsToken(const Plan& plan);

}  // namespace ort_aie::fused_decode
