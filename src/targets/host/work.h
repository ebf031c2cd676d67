// Estimates of how long one thread of a current CPU takes, in nanoseconds, for
// ThreadPool::ParallelFor. They are rough, and rather too low, because too high an estimate for a
// faster core does more harm.
#pragma once

#include <cstdint>

namespace ort_aie::host {

// Copying bytes from memory.
constexpr int64_t CopyNs(int64_t bytes) { return bytes / 16; }
// A pass or two over elements: converting, normalising, rotating, quantising.
constexpr int64_t PassNs(int64_t elements) { return elements / 4; }
// One pass over elements in the caches: adding, multiplying, converting. FunctionNs is for two
// passes, as in a norm, or for a function of each element.
constexpr int64_t SumNs(int64_t elements) { return elements / 16; }
constexpr int64_t FunctionNs(int64_t elements) { return elements / 8; }
// Products of float32, including their loads.
constexpr int64_t ProductsNs(int64_t multiply_adds) { return multiply_adds / 32; }

}  // namespace ort_aie::host
