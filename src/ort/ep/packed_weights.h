// Q4NX and Q2NX weights of a session, packed from MatMulNBits when the model is compiled.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "ort/ep/node.h"

namespace ort_aie::ep {

// Why B, scales or zero_points of a MatMulNBits do not fit K, N and block_size; empty if they do.
std::string WhyMalformed(const Node& matmul);

// (ceil(n/32), ceil(k/256), BlockBytes(form)) uint8, page aligned.
struct PackedWeights {
  Tensor blocks;
  std::unique_ptr<void, decltype(&std::free)> memory{nullptr, &std::free};
};

// Packs on all cores. Throws Error, or std::bad_alloc.
std::shared_ptr<const PackedWeights> PackMatMul(const Node& matmul);

}  // namespace ort_aie::ep
