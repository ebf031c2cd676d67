// How much the cores keep, and descriptors reach: for the kernels, for designs (limits.py), and for
// the scheduler of src/targets/npu, which divides what is larger or leaves it to the host.
#pragma once

#include <cstdint>

namespace design_limits {

constexpr int32_t kMatvecK = 16384;     // in-features of a projection of one row
constexpr int32_t kBiasRounds = 80;     // of its bias: a round is 32 values for each core
constexpr int32_t kGemmK = 65536;       // between rows of blocks are K * 64 bytes: a shim's step
constexpr int32_t kShortGemmK = 16384;  // 64 blocks, as many as a shim's descriptor iterates over
constexpr int32_t kVectorRow = 16384;   // elements of a row of a token's vector operators
constexpr int32_t kSlabs = 28;          // slabs of 256 of a row of a prompt's row operators

}  // namespace design_limits
