// A token's decoder layers on the overlay `fused_layer`: an invocation for each layer, and one for
// the final norm and the vocabulary. Of a token's rows, only new keys and values, the residual
// stream between layers and the logits are in memory.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "targets/npu/schedule/scheduling.h"

namespace ort_aie::npu_target {

// h = x + output(attention(qkv(norm(x)))), y = h + down(gate(norm(h))), with norms of both outputs
// before their sums, or none.
struct DecoderLayer {
  const MatMulStep* qkv = nullptr;
  const AttentionStep* attention = nullptr;
  const MatMulStep* output = nullptr;
  const NormStep* attention_norm = nullptr;  // or null
  const MatMulStep* gate = nullptr;          // and up
  const MatMulStep* down = nullptr;
  const NormStep* output_norm = nullptr;  // or null
};

// Steps [first, end) of a plan of one row: all of its layers, then the vocabulary.
struct Decoder {
  size_t first = 0, end = 0;
  std::vector<DecoderLayer> layers;
  const MatMulStep* vocabulary = nullptr;
};

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
