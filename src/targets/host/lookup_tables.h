// The lookup tables of a row of activations, made once for all projections that take the row in
// (paper 4, 5: graph optimization).
#pragma once

#include <cstdint>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {

struct LookupTables {
  const uint8_t* tables;
  const float *steps, *sums;  // by group of 32
};

// The tables of x (in_features, a multiple of 32), rounded to bfloat16 first where `bf16` asks for
// it. They are valid until the calling thread asks for those of another row.
//
// The last row's tables are kept by thread and found again by content: a row of the same values,
// wherever it lies, has the same tables, so that nobody has to say when they are stale. Comparing
// reads 4 bytes an in-feature, making them writes 4 to 16 and computes 16 sums of four. So q, k and
// v, nodes of their own, share tables as gate and up do within a step. Throws std::bad_alloc.
LookupTables TablesOf(const Kernels& kernels, bool bf16, const float* x, int64_t in_features);

// How many rows the calling thread has made tables of: for tests.
int64_t LookupTablesMade();

}  // namespace ort_aie::host
