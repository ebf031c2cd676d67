// A plan as the token of a whole decoder, part by part: what the fused decode does in one dispatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/plan.h"
#include "targets/npu/fused_decode/geometry.h"

namespace ort_aie::fused_decode {

// The steps of a plan, which must outlive it.
struct DecoderPlan {
  struct Layer {
    std::vector<const MatMulStep*> qkv = {};  // one for all, or one each
    const AttentionStep* attention = nullptr;
    const MatMulStep *o = nullptr, *mlp = nullptr, *down = nullptr;
    std::vector<const void*> norms = {};  // in the order of the model
  };

  size_t first = 0;                    // steps before it make the embedding
  const void* x = nullptr;             // the embedding of the token
  DataType type = DataType::kFloat32;  // of x, norms, logits
  std::vector<Layer> layers = {};
  const void* last_norm = nullptr;
  const MatMulStep* head = nullptr;

  // Tokens of the context, this one included.
  int64_t length() const { return layers.front().attention->total_length[0]; }
};

// What keeps an overlay from doing the plan, in words; empty where nothing does. `positions` is the
// longest context that it takes; `any_epsilon`: norms with another epsilon than the overlay's are
// accepted. Fills `decoder`.
std::string WhyNot(const Plan& plan, const Geometry& geometry, int64_t positions, bool any_epsilon,
                   DecoderPlan& decoder);

// Whether the plan is one of a single token through a decoder, so that WhyNot is worth asking.
bool IsToken(const Plan& plan);

}  // namespace ort_aie::fused_decode
