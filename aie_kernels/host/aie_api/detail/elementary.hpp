// exp2, tanh, inv, invsqrt as each architecture has them.
#pragma once

#include <cmath>
#include <concepts>

#include "arithmetic.hpp"
#include "moves.hpp"
#include "multiply.hpp"

namespace aie {

namespace detail {

// 2^floor(x) * (1 + frac(x)): a straight line between powers of two, up to 6.15 % high (mlir-aie's
// exp2 notes). Out of the exponent's range it gives 0 or infinity.
inline float exp2_line(float x) {
  if (x != x) {
    return x;
  }
  if (x >= 128) {
    return std::bit_cast<float>(0x7F800000);
  }
  if (x < -126) {
    return 0;
  }
  const float whole = std::floor(x);
  const float power =
      std::bit_cast<float>(static_cast<uint32_t>(static_cast<int>(whole) + 127) << 23);
  return power * (1 + (x - whole));
}

// A polygon with a corner every 0.25 from 0.5 on: x itself up to 0.5, +-1 from 3 on. The corners
// are tanh but for the first, which makes the error there 0.038, the worst (IRON's lm_head notes).
inline float tanh_polygon(float x) {
  static constexpr float corner[] = {0.5f,        0.63514895f, 0.76159416f, 0.84828364f,
                                     0.90514825f, 0.94137554f, 0.96402758f, 0.97803326f,
                                     0.98661430f, 0.99185972f, 1.0f};
  const float size = std::fabs(x);
  float value = size;
  if (size >= 3) {
    value = 1;
  } else if (size > 0.5f) {
    const float position = (size - 0.5f) * 4;
    const auto piece = static_cast<unsigned>(position);
    value = corner[piece] +
            (corner[piece + 1] - corner[piece]) * (position - static_cast<float>(piece));
  }
  return std::copysign(value, x);
}

template <typename TR, typename T, unsigned N>
constexpr void check_elementary() {
  static_assert(is_aie2p && N > 0, "AIE2 has no exp2 and no tanh; approximate them");
  static_assert(std::is_same_v<T, float>, "AIE2P: exp2 and tanh take vector<float, N>");
  static_assert(std::is_same_v<TR, bfloat16>, "AIE2P: exp2 and tanh give bfloat16");
  static_assert(N >= 16, "AIE2P: exp2 and tanh have 16 lanes at least");
}

}  // namespace detail

// The last bit is rounded in the current mode (assumed).
template <typename TR = bfloat16, typename T, unsigned N>
vector<bfloat16, N> exp2(const vector<T, N>& v) {
  detail::check_elementary<TR, T, N>();
  const auto& lanes = detail::host::lanes(v);
  return detail::generate<accum<accfloat, N>>(
             [&](unsigned lane) { return detail::exp2_line(lanes[lane]); })
      .template to_vector<bfloat16>();
}

// The last bit is rounded in the current mode (assumed).
template <typename TR = bfloat16, typename T, unsigned N>
vector<bfloat16, N> tanh(const vector<T, N>& v) {
  detail::check_elementary<TR, T, N>();
  const auto& lanes = detail::host::lanes(v);
  return detail::generate<accum<accfloat, N>>(
             [&](unsigned lane) { return detail::tanh_polygon(lanes[lane]); })
      .template to_vector<bfloat16>();
}

// Scalars and fp32 vectors: correctly rounded (assumed). AIE2P has no vector form for fp32: lane by
// lane through the scalar unit.
template <std::same_as<float> T>
T inv(T x) {
  return detail::flush(1 / x);
}
template <std::same_as<float> T>
T invsqrt(T x) {
  return detail::flush(static_cast<float>(1 / std::sqrt(static_cast<double>(x))));
}

template <typename T, unsigned N>
vector<T, N> inv(const vector<T, N>& v) {
  static_assert(detail::is_floating<T>, "AIE: inv takes float or bfloat16");
  if constexpr (std::is_same_v<T, float>) {
    const auto& lanes = detail::host::lanes(v);
    return detail::generate<vector<T, N>>([&](unsigned lane) { return inv(lanes[lane]); });
  } else {
    // A guess from the bits and two Newton steps, `aie_api/detail/aie2p/elementary.hpp`.
    const vector<int16, N> guess = sub(static_cast<int16>(0x7EB5), v.template cast_to<int16>());
    const vector<bfloat16, N> y = guess.template cast_to<bfloat16>();
    const accum<accfloat, N> start(broadcast<float, N>(1.436142f));
    const vector<bfloat16, N> t = msc(start, v, y).template to_vector<bfloat16>();
    const vector<bfloat16, N> u = mul(t, y).template to_vector<bfloat16>();
    constexpr bfloat16 factor(1.9395974f);
    const vector<bfloat16, N> z = negmul(u, factor).template to_vector<bfloat16>();
    const accum<accfloat, N> two(broadcast<float, N>(2.0f));
    const vector<bfloat16, N> r = mac(two, z, v).template to_vector<bfloat16>();
    return negmul(z, r).template to_vector<bfloat16>();
  }
}

template <typename T, unsigned N>
vector<T, N> invsqrt(const vector<T, N>& v) {
  static_assert(detail::is_floating<T>, "AIE: invsqrt takes float or bfloat16");
  if constexpr (std::is_same_v<T, float>) {
    const auto& lanes = detail::host::lanes(v);
    return detail::generate<vector<T, N>>([&](unsigned lane) { return invsqrt(lanes[lane]); });
  } else {
    constexpr uint32_t c1 = 0x5F1FFFF9;
    constexpr float c2 = 0.703952253f;
    constexpr float c3 = 2.38924456f;
    constexpr bfloat16 factor(c2);
    const auto& lanes = detail::host::lanes(v);
    const vector<bfloat16, N> x2 = mul(v, factor).template to_vector<bfloat16>();
    const vector<bfloat16, N> y = detail::generate<accum<accfloat, N>>([&](unsigned lane) {
                                    const auto bits =
                                        std::bit_cast<uint32_t>(static_cast<float>(lanes[lane]));
                                    return std::bit_cast<float>(c1 - (bits >> 1));
                                  }).template to_vector<bfloat16>();
    const vector<bfloat16, N> yy = mul(y, y).template to_vector<bfloat16>();
    const accum<accfloat, N> start(broadcast<float, N>(c2 * c3));
    const vector<bfloat16, N> q = msc(start, x2, yy).template to_vector<bfloat16>();
    return mul(y, q).template to_vector<bfloat16>();
  }
}

}  // namespace aie
