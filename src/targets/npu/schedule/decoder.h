// A plan of one row as a decoder: layers, then the vocabulary. Both overlays that run a whole token
// read plans with this, `fused_layer` and those that others built.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ops/plan.h"

namespace ort_aie::npu_target {

// h = x + output(attention(qkv(norm(x)))), y = h + down(gate(norm(h))), with norms of both outputs
// before their sums, or none.
struct DecoderLayer {
  std::vector<const MatMulStep*> qkv = {};  // one for all three, or one each
  const AttentionStep* attention = nullptr;
  const MatMulStep* output = nullptr;
  const NormStep* attention_norm = nullptr;  // or null
  const MatMulStep* gate = nullptr;          // and up
  const MatMulStep* down = nullptr;
  const NormStep* output_norm = nullptr;  // or null
};

// Steps [first, end) of a plan, to which those before make the embedding.
struct Decoder {
  size_t first = 0, end = 0;
  std::vector<DecoderLayer> layers = {};
  const MatMulStep* vocabulary = nullptr;
};

// Reads a plan, which must outlive the decoder. Returns why it is not one, in words, naming the
// step; empty if it is. Sizes are not compared.
std::string ReadDecoder(const Plan& plan, Decoder& decoder);

}  // namespace ort_aie::npu_target
