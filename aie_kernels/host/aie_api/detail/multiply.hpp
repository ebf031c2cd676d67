// Multiplication and accumulation. bfloat16 products are exact and each mac rounds its fp32 sum
// once; the mode does not matter. fp32 x fp32 is built of nine bfloat16 products.
#pragma once

#include "accum.hpp"

namespace aie {

namespace detail {

template <typename A, typename B>
struct product {
  using a = element_of<A>;
  using b = element_of<B>;
  static constexpr bool floating = is_floating<a> || is_floating<b>;
  static constexpr bool fp32 = std::is_same_v<a, float>;
  static constexpr unsigned lanes = common_lanes<A, B>;
  using tag =
      std::conditional_t<floating, accfloat, std::conditional_t<bits_of<a> == 32, acc64, acc32>>;
  using accumulator = accum<tag, lanes>;

  static constexpr void check() {
    static_assert(element_traits<a>::exists && element_traits<b>::exists,
                  "AIE: cannot multiply these types");
    static_assert(!floating || std::is_same_v<a, b>,
                  "AIE: no mixed multiplication: both operands must be float or both bfloat16");
    static_assert(!is_four_bit<a> && !is_four_bit<b>, "AIE: unpack four-bit lanes first");
    static_assert((bits_of<a> == 32) == (bits_of<b> == 32),
                  "AIE: products of integers of 32 and fewer bits are not modelled");
    check_operands<A, B>();
  }
};

inline float nearest_bf16(float value) {
  constexpr rounder<16> to_nearest(rounding_mode::conv_even);
  const uint32_t bits = round_to_bf16(std::bit_cast<uint32_t>(value), to_nearest);
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

template <bool start, typename Acc, typename A, typename B>
Acc multiply(const Acc* acc, const A& a, const B& b, int sign) {
  using p = product<A, B>;
  if constexpr (p::floating) {
    const auto x = reader<typename p::a>(a);
    const auto y = reader<typename p::b>(b);
    const auto s = static_cast<float>(sign);
    return generate<Acc>([&](unsigned lane) {
      float sum = 0;
      if constexpr (!start) {
        sum = host::lanes(*acc)[lane];
      }
      return multiply_add<p::fp32, start>(sum, x(lane), y(lane), s);
    });
  } else {
    using wide = typename accum_traits<typename Acc::value_type>::storage;
    using modular = std::make_unsigned_t<wide>;
    const auto x = reader<typename p::a>(a);
    const auto y = reader<typename p::b>(b);
    return generate<Acc>([&](unsigned lane) {
      modular sum = 0;
      if constexpr (!start) {
        sum = static_cast<modular>(host::lanes(*acc)[lane]);
      }
      const auto both = static_cast<modular>(static_cast<wide>(x(lane))) *
                        static_cast<modular>(static_cast<wide>(y(lane)));
      return static_cast<wide>(sign > 0 ? sum + both : sum - both);
    });
  }
}

template <typename Tag, typename A, typename B>
auto start_product(const A& a, const B& b, int sign) {
  using p = product<A, B>;
  p::check();
  static_assert(std::is_same_v<Tag, accauto> || std::is_same_v<Tag, typename p::tag>,
                "AIE: products of these types have another accumulator");
  return multiply<true, typename p::accumulator>(nullptr, a, b, sign);
}

template <typename Tag, unsigned N, typename A, typename B>
accum<Tag, N> add_product(const accum<Tag, N>& acc, const A& a, const B& b, int sign) {
  using p = product<A, B>;
  p::check();
  static_assert(p::lanes == N, "AIE: the accumulator has another lane count than the operands");
  static_assert(std::is_same_v<Tag, typename p::tag>,
                "AIE: products of these types have another accumulator");
  return multiply<false>(&acc, a, b, sign);
}

}  // namespace detail

template <typename Tag = accauto, typename A, typename B>
auto mul(const A& a, const B& b) {
  return detail::start_product<Tag>(a, b, 1);
}

template <typename Tag = accauto, typename A, typename B>
auto negmul(const A& a, const B& b) {
  return detail::start_product<Tag>(a, b, -1);
}

template <typename Tag, unsigned N, typename A, typename B>
accum<Tag, N> mac(const accum<Tag, N>& acc, const A& a, const B& b) {
  return detail::add_product(acc, a, b, 1);
}

template <typename Tag, unsigned N, typename A, typename B>
accum<Tag, N> msc(const accum<Tag, N>& acc, const A& a, const B& b) {
  return detail::add_product(acc, a, b, -1);
}

template <typename Tag = accauto, typename T, unsigned N>
auto mul_square(const vector<T, N>& v) {
  return mul<Tag>(v, v);
}

template <typename Tag, unsigned N, typename T>
accum<Tag, N> mac_square(const accum<Tag, N>& acc, const vector<T, N>& v) {
  return mac(acc, v, v);
}

}  // namespace aie
