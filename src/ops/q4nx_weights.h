// The Q4NX and Q2NX weight inputs of all ops.
#pragma once

#include <cstdint>

#include "ops/tensor.h"

namespace ort_aie {

struct Q4NXWeights {
  // (ceil(n/32), ceil(k/256), 5120, or 3072 for 2 bits), read where it lies
  const uint8_t* blocks = nullptr;
  int64_t k = 0, n = 0, bits = 4;
};

// What the attributes of a node say of its weights.
struct Q4NXWeightAttributes {
  int64_t k = 0, n = 0, bits = 4, format = 0;
};

// `name` is what errors call the input. Throws Error when the attributes and the tensor do not fit
// together.
Q4NXWeights CheckQ4NXWeights(const char* name, const Q4NXWeightAttributes& attributes,
                             const Tensor& w);

}  // namespace ort_aie
