// The constant weights of all ops, in any form (q4nx/layout.h).
#pragma once

#include <cstdint>
#include <optional>

#include "ops/tensor.h"
#include "q4nx/layout.h"

namespace ort_aie {

struct Weights {
  const uint8_t* blocks = nullptr;  // read in place
  int64_t k = 0, n = 0;
  WeightForm form = WeightForm::kQ4NX;
};

// A node's attributes about its weights.
struct WeightAttributes {
  int64_t k = 0, n = 0, bits = 4, format = 0;
  std::optional<WeightForm> form = std::nullopt;  // if the op's name sets it; else bits choose
};

// The shape of n x k weights: (ceil(n/32), ceil(k/256), 5120) uint8, with 3072 in place of 5120 for
// 2 bits and 9472 for 8, or 8192 bfloat16.
Shape BlocksShape(int64_t n, int64_t k, WeightForm form);

// `name` is the input's name in errors. With `experts` there are that many weights, one after the
// other, and the tensor has one more dimension for it. Throws Error if the attributes and the
// tensor do not fit together.
Weights CheckWeights(const char* name, const WeightAttributes& attributes, const Tensor& w,
                     std::optional<int64_t> experts = std::nullopt);

}  // namespace ort_aie
