// Codes to wider integers, integers to floats.
#pragma once

#include "accum.hpp"

namespace aie {

// Zero extension to the next wider integer.
template <typename T, unsigned N>
auto unpack(const vector<T, N>& v) {
  static_assert(std::is_same_v<T, uint4> || std::is_same_v<T, uint8>,
                "AIE: the stand-in unpacks uint4 and uint8 only");
  const auto& lanes = detail::host::lanes(v);
  if constexpr (detail::is_four_bit<T>) {
    return detail::generate<vector<uint8, N>>([&](unsigned lane) -> uint8 {
      return lane % 2 == 0 ? lanes[lane / 2] & 15 : lanes[lane / 2] >> 4;
    });
  } else {
    return detail::generate<vector<uint16, N>>(
        [&](unsigned lane) -> uint16 { return lanes[lane]; });
  }
}

template <typename T, unsigned N>
auto vector<T, N>::unpack() const {
  return aie::unpack(*this);
}

// Exact below 2^24.
template <typename TR, typename T, unsigned N>
vector<TR, N> to_float(const vector<T, N>& v) {
  static_assert(std::is_same_v<T, int32> && std::is_same_v<TR, float>,
                "AIE: the stand-in makes float of int32 only");
  const auto& lanes = detail::host::lanes(v);
  return detail::generate<vector<float, N>>(
      [&](unsigned lane) { return static_cast<float>(lanes[lane]); });
}

}  // namespace aie
