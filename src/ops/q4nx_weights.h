// The Q4NX weight inputs of all ops.
#pragma once

#include <cstdint>

#include "ops/tensor.h"

namespace ort_aie {

struct Q4NXWeights {
  const uint8_t* blocks = nullptr;  // (ceil(n/32), ceil(k/256), 5120), read where it lies
  int64_t k = 0, n = 0;
};

// Throws Error when the format, K, N or the tensor do not fit together.
Q4NXWeights CheckQ4NXWeights(const char* name, int64_t format, int64_t k, int64_t n,
                             const Tensor& w);

}  // namespace ort_aie
