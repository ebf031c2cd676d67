// The lookup tables of a row of activations, made once for all projections that read the row.
#pragma once

#include <cstdint>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {

struct LookupTables {
  const uint8_t* tables;
  const float *steps, *sums;  // by group of 32
};

// The tables of x (in_features, a multiple of 32), rounded to bfloat16 first if `bf16`. They are
// valid until the calling thread asks for those of another row.
//
// Each thread keeps the tables of its last row and finds them again by content: a row of the same
// values, wherever it is, has the same tables, so that they never become stale. Comparing reads 4
// bytes per in-feature; making them writes 4 to 16 and computes 16 sums of four. So q, k and v,
// which are nodes of their own, share tables as gate and up do within a step. Throws
// std::bad_alloc.
LookupTables TablesOf(const Kernels& kernels, bool bf16, const float* x, int64_t in_features);

// For how many rows the calling thread has made tables; for tests.
int64_t LookupTablesMade();

}  // namespace ort_aie::host
