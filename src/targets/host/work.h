// How long one thread of a current CPU works on something, in nanoseconds, for
// ThreadPool::ParallelFor: about, and rather too little, for what it says of a faster core is what
// hurts.
#pragma once

#include <cstdint>

namespace ort_aie::host {

// Copying bytes, from memory.
constexpr int64_t CopyNs(int64_t bytes) { return bytes / 16; }
// A pass or two over elements: converted, normalised, rotated, quantised.
constexpr int64_t PassNs(int64_t elements) { return elements / 4; }
// One pass over elements in the caches: added, multiplied, converted. Two of them, as a norm has,
// or a function of each.
constexpr int64_t SumNs(int64_t elements) { return elements / 16; }
constexpr int64_t FunctionNs(int64_t elements) { return elements / 8; }
// Products of float32, with what is loaded for them.
constexpr int64_t ProductsNs(int64_t multiply_adds) { return multiply_adds / 32; }

}  // namespace ort_aie::host
