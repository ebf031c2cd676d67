// Elements of a model's type <-> the device's bfloat16, with at most one rounding.
#pragma once

#include <cstdint>
#include <cstring>

#include "targets/host/host_target.h"
#include "targets/host/scratch.h"

namespace ort_aie::npu_target {

// n elements of `type` at x -> bfloat16.
inline void ToBfloat16(const host::Kernels& kernels, DataType type, const void* x, int64_t n,
                       uint16_t* y) {
  if (type == DataType::kBfloat16) {
    std::memcpy(y, x, static_cast<size_t>(n) * 2);
  } else if (type == DataType::kFloat32) {
    kernels.float_to_bfloat16(static_cast<const float*>(x), n, y);
  } else {
    float* between = host::Scratch<float>(host::Purpose::kRow, n);
    host::ToFloat(kernels, type, x, n, between);
    kernels.float_to_bfloat16(between, n, y);
  }
}

// n bfloat16 at x -> elements of `type` at y.
inline void FromBfloat16(const host::Kernels& kernels, const uint16_t* x, int64_t n, DataType type,
                         void* y) {
  if (type == DataType::kBfloat16) {
    std::memcpy(y, x, static_cast<size_t>(n) * 2);
  } else if (type == DataType::kFloat32) {
    kernels.bfloat16_to_float(x, n, static_cast<float*>(y));
  } else {
    float* between = host::Scratch<float>(host::Purpose::kRow, n);
    kernels.bfloat16_to_float(x, n, between);
    host::FromFloat(kernels, type, between, n, y);
  }
}

}  // namespace ort_aie::npu_target
