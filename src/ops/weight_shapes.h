// The types and shapes that ONNX Runtime's kernels require of blocked weights, for both doors: what
// they refuse must not become a step, even if it has the right number of bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ort_aie {

// What is known of an input: its ONNX type, and its dimensions, -1 for one that is not known.
struct KnownInput {
  std::string type;
  std::vector<int64_t> dims;
};

// The inputs of a MatMulNBits with K, N, bits and block_size that WhyNotQ4NX accepts. An optional
// one is nothing if it is absent, or if not even the number of its dimensions is known.
struct BlockedWeights {
  int64_t k = 0, n = 0, bits = 4, block_size = 0;
  KnownInput b, scales;
  std::optional<KnownInput> zero_points, bias;
};

// Why they are not those of such a MatMulNBits; empty if they are.
std::string WhyMalformed(const BlockedWeights& weights);

// A GatherBlockQuantized that reads the codes of a MatMulNBits as rows, and its other weights.
struct TiedGather {
  int64_t bits = 4, gather_axis = 0, quantize_axis = 1;
  KnownInput data;
};

// Why the gather cannot read rows of the MatMulNBits' packed weights; empty if it can.
std::string WhyNotRows(const TiedGather& gather, const BlockedWeights& weights);

}  // namespace ort_aie
