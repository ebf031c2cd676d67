// A plan as one token through a whole decoder, part by part: the work of a fused decode in one
// dispatch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/plan.h"
#include "targets/npu/fused_decode/geometry.h"
#include "targets/npu/schedule/decoder.h"

namespace ort_aie::fused_decode {

// The steps of a plan. The plan must outlive this.
struct DecoderPlan {
  npu_target::Decoder steps;

  const MatMulStep& first() const { return *steps.layers.front().qkv.front(); }
  const void* x() const { return first().a; }     // the embedding of the token
  DataType type() const { return first().type; }  // of x, norms, logits
  const MatMulStep& head() const { return *steps.vocabulary; }
  // Tokens in the context, including this one.
  int64_t length() const { return steps.layers.front().attention->total_length[0]; }
};

// The weights of a layer's norms, in the order of the model.
std::vector<const void*> NormsOf(const npu_target::DecoderLayer& layer);

// Why an overlay cannot do the plan, in words; empty if it can. `positions` is the longest context
// of the overlay. With `any_epsilon`, norms may have another epsilon than the overlay's. Fills
// `decoder`.
std::string WhyNot(const Plan& plan, const Geometry& geometry, int64_t positions, bool any_epsilon,
                   DecoderPlan& decoder);

// Whether the plan is a single token through a decoder, so that WhyNot makes sense.
bool IsToken(const Plan& plan);

}  // namespace ort_aie::fused_decode
