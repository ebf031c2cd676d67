// Marks of rows, to find out whether a row has changed without keeping a second copy of it.
#pragma once

#include <cstdint>

namespace ort_aie::npu_target {

// Two sums of products of a row's words with random keys of the process (NH, from UMAC: RFC 4418).
// For two different rows of one length, at most one choice of keys in 2^64 gives the same mark.
struct RowMark {
  uint64_t sums[2] = {};

  bool operator==(const RowMark&) const = default;
};

// For up to kMostMarkedBytes bytes, a multiple of four.
inline constexpr int64_t kMostMarkedBytes = 1024;  // 256 dimensions of float32
RowMark MarkOf(const void* row, int64_t bytes);

}  // namespace ort_aie::npu_target
