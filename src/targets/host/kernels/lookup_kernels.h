// Kernels for Q2NX, weights of two bits in bit planes: a projection of one row by lookups in tables
// of sums, and the dequantisation by lookups with which the GEMM of many rows starts. One layout
// serves both, as in *T-MAN: Enabling End-to-End Low-Bit LLM Inference on NPUs via Unified Table
// Lookup*. The rules of kernels.h apply.
//
// Each code is 3/2 + (s0 + 2 s1) / 2 with signs s for its bits. With L(p) = the sum of signs of
// plane p times activations, and X = the sum of a group's activations,
//   y = sum over groups of scale * (3/2 X + (L(0) + 2 L(1)) / 2) + min * X.
// A table holds, for four activations, the sum for each of the 16 combinations of signs; the nibble
// that the layout stores for four codes is the index. No weight is dequantised or multiplied.
#pragma once

#include <stdint.h>

#include "targets/host/kernels/block_layout.h"

namespace ort_aie::host {

// The largest size of the table of four in-features: 16 floats.
constexpr int64_t kMaxTableBytes = 64;

// Lookups in tables of some precision.
struct LookupMatvec {
  // x (groups * 32) -> tables (groups * 8, of at most kMaxTableBytes each, in an order that the
  // kernel chooses), steps (the value of one unit of an integer table, by group), and sums of x by
  // group. A NaN or an infinity makes its group's results NaN or infinite; so may magnitudes that
  // add up to more than 2^126 in a group.
  void (*make_tables)(const float* x, int64_t groups, uint8_t* tables, float* steps, float* sums);
  // y[32] = one row of Q2NX blocks . x.
  void (*multiply)(const uint8_t* blocks, int64_t k_blocks, const uint8_t* tables,
                   const float* steps, const float* sums, const BlockLayout& layout, float* y);
  // As measured. Rows are multiplied one after the other by a row of blocks; with more of them,
  // dequantisation + GEMM is faster.
  int64_t most_rows;
};

struct LookupKernels {
  // Sums of bfloat16 values: in float32, or in int16 with a step for each group. A lookup is then
  // off by at most half a step, 2^-16 of the group's largest sum. For comparison, the rounding of
  // its four activations to bfloat16 may have moved the sum by 2^-9 of itself. A step is never less
  // than 2^-125.
  LookupMatvec bf16;
  // Sums of float32 values in int8, with a step for each group: off by at most 1 / 254 of the
  // group's largest sum. For comparison, activations in int8 are each off by 1 / 254 of the group's
  // largest one.
  LookupMatvec int8;
  // As in kernels.h, for Q2NX: unpack_block has code - 2 in place of code - 8.
  void (*dequantize_block)(const uint8_t* block, const BlockLayout& layout, uint16_t* panel);
  void (*unpack_block)(const uint8_t* block, const BlockLayout& layout, int8_t* codes,
                       float* scales, float* mins, int32_t* offsets);
};

extern const LookupKernels kPortableLookup;
#if defined(__x86_64__)
extern const LookupKernels kAvx2Lookup;
extern const LookupKernels kAvx512Lookup, kAvx512NtaLookup;
#endif

}  // namespace ort_aie::host
