// A token's decoder layers on the overlay `fused_layer`: an invocation for each layer, and one for
// the final norm and the vocabulary. Of a token's rows, only new keys and values, the residual
// stream between layers and the logits are in memory.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "targets/npu/schedule/decoder.h"
#include "targets/npu/schedule/scheduling.h"

namespace ort_aie::npu_target {

// The decoder of a plan that the overlay can run, or why it cannot: which limit, and what came.
// Both are empty for a plan without a token's attention.
struct FoundDecoder {
  std::optional<Decoder> decoder;
  std::string why_not;
};
// `why_not` says why the device does not do a step at all.
FoundDecoder FindDecoder(const npu::Manifest& overlay, const Plan& plan,
                         const std::function<Reason(const Step&)>& why_not);

// Adds all of its steps to an empty batch. Throws Error if they wait for something that the host
// does not have yet.
void AppendDecoder(Scheduling& scheduling, Batch& batch, const Decoder& decoder);

}  // namespace ort_aie::npu_target
