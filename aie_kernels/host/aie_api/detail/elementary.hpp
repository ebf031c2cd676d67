// inv and invsqrt of scalars: correctly rounded (assumed).
#pragma once

#include <cmath>
#include <concepts>

#include "rounding.hpp"

namespace aie {

template <std::same_as<float> T>
T inv(T x) {
  return detail::flush(1 / x);
}
template <std::same_as<float> T>
T invsqrt(T x) {
  return detail::flush(static_cast<float>(1 / std::sqrt(static_cast<double>(x))));
}

}  // namespace aie
