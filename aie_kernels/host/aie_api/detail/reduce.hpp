// The sum of the lanes, in the order of each architecture.
#pragma once

#include "vector.hpp"

namespace aie {

// Chunks of 32 lanes, or 16 on AIE2, in order, then halves; each step rounds to fp32.
template <typename T, unsigned N>
T reduce_add(const vector<T, N>& v) {
  static_assert(std::is_same_v<T, float>, "AIE: the stand-in sums lanes of float only");
  constexpr unsigned width = detail::is_aie2p ? 32 : 16;
  constexpr unsigned left = N < width ? N : width;
  const auto& lanes = detail::host::lanes(v);
  std::array<float, left> sums;
  for (unsigned lane = 0; lane < left; ++lane) {
    sums[lane] = lanes[lane];
  }
  for (unsigned lane = left; lane < N; ++lane) {
    sums[lane % left] = detail::flush(sums[lane % left] + lanes[lane]);
  }
  for (unsigned half = left / 2; half > 0; half /= 2) {
    for (unsigned lane = 0; lane < half; ++lane) {
      sums[lane] = detail::flush(sums[lane] + sums[lane + half]);
    }
  }
  return sums[0];
}

}  // namespace aie
