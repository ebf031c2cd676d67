// Multiplication and accumulation. bfloat16 products are exact and each mac rounds its fp32 sum
// once; the mode does not matter. fp32 x fp32 is built of nine bfloat16 products.
#pragma once

#include "accum.hpp"

namespace aie {

namespace detail {

template <typename A, typename B>
struct product {
  using element = element_of<A>;
  static constexpr unsigned lanes = common_lanes<A, B>;
  using sums = accum<accfloat, lanes>;

  static constexpr void check() {
    static_assert(std::is_same_v<element, float> || std::is_same_v<element, bfloat16>,
                  "AIE: the stand-in multiplies float and bfloat16 only");
    static_assert(std::is_same_v<element, element_of<B>>,
                  "AIE: no mixed multiplication: both operands must be float or both bfloat16");
    check_operands<A, B>();
  }
};

inline float nearest_bf16(float value) {
  const uint32_t bits = round_to_bf16(std::bit_cast<uint32_t>(value));
  return std::bit_cast<float>(bits << 16);
}

// Three bfloat16 limbs that add up to an fp32 value, and the order of their products
// (`aie_api/detail/aie2p`: emulated fp32 multiplication of full accuracy).
struct limbs {
  float part[3];
  explicit limbs(float value) {
    part[0] = nearest_bf16(value);
    part[1] = nearest_bf16(value - part[0]);
    part[2] = nearest_bf16(value - part[0] - part[1]);
  }
};
inline constexpr unsigned limb_order[9][2] = {{0, 0}, {0, 1}, {1, 0}, {0, 2}, {1, 1},
                                              {2, 0}, {1, 2}, {2, 1}, {2, 2}};

// acc + sign * a * b of one lane. With `start` the accumulator counts as absent.
template <bool fp32, bool start>
float multiply_add(float acc, float a, float b, float sign) {
  if constexpr (!fp32) {
    const double exact = static_cast<double>(a) * sign * static_cast<double>(b);
    return round_to_f32(start ? exact : exact + static_cast<double>(acc));
  } else {
    const limbs x(a * sign);
    const limbs y(b);
    float sum = multiply_add<false, start>(acc, x.part[0], y.part[0], 1.0f);
    for (unsigned i = 1; i < 9; ++i) {
      sum = multiply_add<false, false>(sum, x.part[limb_order[i][0]], y.part[limb_order[i][1]], 1);
    }
    return sum;
  }
}

template <bool start, typename A, typename B>
auto multiply(const typename product<A, B>::sums* acc, const A& a, const B& b, int sign) {
  using p = product<A, B>;
  p::check();
  using T = typename p::element;
  const auto x = reader<T>(a);
  const auto y = reader<T>(b);
  const auto s = static_cast<float>(sign);
  return generate<typename p::sums>([&](unsigned lane) {
    float sum = 0;
    if constexpr (!start) {
      sum = host::lanes(*acc)[lane];
    }
    return multiply_add<std::is_same_v<T, float>, start>(sum, x(lane), y(lane), s);
  });
}

template <unsigned N, typename A, typename B>
accum<accfloat, N> add_product(const accum<accfloat, N>& acc, const A& a, const B& b, int sign) {
  static_assert(product<A, B>::lanes == N,
                "AIE: the accumulator has another lane count than the operands");
  return multiply<false, A, B>(&acc, a, b, sign);
}

}  // namespace detail

template <typename A, typename B>
auto mul(const A& a, const B& b) {
  return detail::multiply<true, A, B>(nullptr, a, b, 1);
}

template <typename A, typename B>
auto negmul(const A& a, const B& b) {
  return detail::multiply<true, A, B>(nullptr, a, b, -1);
}

template <typename Tag, unsigned N, typename A, typename B>
accum<Tag, N> mac(const accum<Tag, N>& acc, const A& a, const B& b) {
  return detail::add_product(acc, a, b, 1);
}

template <typename Tag, unsigned N, typename A, typename B>
accum<Tag, N> msc(const accum<Tag, N>& acc, const A& a, const B& b) {
  return detail::add_product(acc, a, b, -1);
}

template <typename Tag, unsigned N, typename T>
accum<Tag, N> mac_square(const accum<Tag, N>& acc, const vector<T, N>& v) {
  return mac(acc, v, v);
}

}  // namespace aie
