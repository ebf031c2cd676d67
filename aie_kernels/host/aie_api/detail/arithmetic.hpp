// Addition, comparison, extremes, bits.
#pragma once

#include "accum.hpp"
#include "moves.hpp"

namespace aie {

namespace detail {

template <typename A, typename B>
using vector_element = std::conditional_t<operand<A>::is_vector, element_of<A>, element_of<B>>;

// f of both lanes.
template <typename A, typename B, typename F>
auto lanewise(const A& a, const B& b, F f) {
  check_operands<A, B>();
  check_same_elements<A, B>();
  using T = vector_element<A, B>;
  static_assert(!is_four_bit<T>, "AIE: unpack four-bit lanes first");
  const auto x = reader<T>(a);
  const auto y = reader<T>(b);
  return generate<vector<T, common_lanes<A, B>>>(
      [&](unsigned lane) -> T { return f(x(lane), y(lane)); });
}

template <typename A, typename B, typename F>
auto compare(const A& a, const B& b, F f) {
  check_operands<A, B>();
  check_same_elements<A, B>();
  using T = vector_element<A, B>;
  const auto x = reader<T>(a);
  const auto y = reader<T>(b);
  return generate_mask<common_lanes<A, B>>([&](unsigned lane) { return f(x(lane), y(lane)); });
}

// False with a NaN. The chip compares bfloat16 by sign and magnitude, so that -0 < +0 (xdna-emu,
// checked on Phoenix).
template <typename T>
bool less(T a, T b) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const auto key = [](bfloat16 x) {
      const int bits = static_cast<int16_t>(bits_of_bf16(x));
      return bits < 0 ? -1 - (bits & 0x7FFF) : bits;
    };
    const bool nan = (bits_of_bf16(a) & 0x7FFF) > 0x7F80 || (bits_of_bf16(b) & 0x7FFF) > 0x7F80;
    return !nan && key(a) < key(b);
  } else {
    return a < b;
  }
}
template <typename T>
bool equal(T a, T b) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return bits_of_bf16(a) == bits_of_bf16(b) && (bits_of_bf16(a) & 0x7FFF) <= 0x7F80;
  } else {
    return a == b;
  }
}

// Integers wrap.
template <typename T>
T add_lanes(T a, T b) {
  if constexpr (is_floating<T>) {
    return flush(a + b);
  } else {
    return static_cast<T>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
}

template <typename T>
T negate(T value) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return bf16_of_bits(bits_of_bf16(value) ^ 0x8000);
  } else if constexpr (std::is_same_v<T, float>) {
    return -value;
  } else {
    return static_cast<T>(0u - static_cast<uint32_t>(value));
  }
}

// bfloat16 is added in fp32 and rounded once per operation, in the current mode.
template <typename A, typename B>
auto sum(const A& a, const B& b, bool subtract) {
  using T = vector_element<A, B>;
  if constexpr (std::is_same_v<T, bfloat16>) {
    need_mode();
    return lanewise(a, b, [subtract](bfloat16 x, bfloat16 y) {
      const float exact = flush(subtract ? static_cast<float>(x) - static_cast<float>(y)
                                         : static_cast<float>(x) + static_cast<float>(y));
      return bf16_of_bits(round_to_bf16(std::bit_cast<uint32_t>(exact)));
    });
  } else {
    return lanewise(a, b, [subtract](T x, T y) { return add_lanes(x, subtract ? negate(y) : y); });
  }
}

template <typename Tag, unsigned N, typename Lanes>
accum<Tag, N> sum_accum(const accum<Tag, N>& acc, const Lanes& other, bool subtract) {
  const auto& x = host::lanes(acc);
  const auto& y = host::lanes(other);
  return generate<accum<Tag, N>>([&](unsigned lane) {
    const auto right = static_cast<float>(y[lane]);
    return flush(subtract ? x[lane] - right : x[lane] + right);
  });
}

}  // namespace detail

template <typename A, typename B>
  requires(!detail::is_accum<A> && !detail::is_accum<B>)
auto add(const A& a, const B& b) {
  return detail::sum(a, b, false);
}
template <typename A, typename B>
  requires(!detail::is_accum<A> && !detail::is_accum<B>)
auto sub(const A& a, const B& b) {
  return detail::sum(a, b, true);
}
template <typename Tag, unsigned N>
accum<Tag, N> add(const accum<Tag, N>& acc, const accum<Tag, N>& other) {
  return detail::sum_accum(acc, other, false);
}
template <typename Tag, unsigned N>
accum<Tag, N> sub(const accum<Tag, N>& acc, const accum<Tag, N>& other) {
  return detail::sum_accum(acc, other, true);
}
template <typename Tag, unsigned N, typename T>
accum<Tag, N> add(const accum<Tag, N>& acc, const vector<T, N>& v) {
  static_assert(detail::is_floating<T>, "AIE: accfloat takes float or bfloat16");
  return detail::sum_accum(acc, v, false);
}
template <typename Tag, unsigned N, typename T>
accum<Tag, N> sub(const accum<Tag, N>& acc, const vector<T, N>& v) {
  static_assert(detail::is_floating<T>, "AIE: accfloat takes float or bfloat16");
  return detail::sum_accum(acc, v, true);
}

// With a NaN the comparison is false, and max and min keep their first operand.
template <typename A, typename B>
auto max(const A& a, const B& b) {
  return detail::lanewise(a, b, [](auto x, auto y) { return detail::less(x, y) ? y : x; });
}
template <typename A, typename B>
auto min(const A& a, const B& b) {
  return detail::lanewise(a, b, [](auto x, auto y) { return detail::less(y, x) ? y : x; });
}
template <typename A, typename B>
auto lt(const A& a, const B& b) {
  return detail::compare(a, b, [](auto x, auto y) { return detail::less(x, y); });
}
template <typename A, typename B>
auto le(const A& a, const B& b) {
  return detail::compare(a, b,
                         [](auto x, auto y) { return detail::less(x, y) || detail::equal(x, y); });
}
template <typename A, typename B>
auto ge(const A& a, const B& b) {
  return le(b, a);
}
template <typename A, typename B>
auto eq(const A& a, const B& b) {
  return detail::compare(a, b, [](auto x, auto y) { return detail::equal(x, y); });
}
namespace detail {

template <typename A, typename B, typename F>
auto bitwise(const A& a, const B& b, F f) {
  using T = vector_element<A, B>;
  static_assert(!is_floating<T>, "AIE: bit operations take integers; use cast_to");
  return lanewise(a, b, [f](T x, T y) { return static_cast<T>(f(x, y)); });
}

// A scalar comes first and has the vector's element type.
template <typename A, typename T, unsigned N>
concept first_of_bits =
    std::is_same_v<A, vector<T, N>> || std::is_same_v<element_of<A>, T> && !operand<A>::is_vector;

}  // namespace detail

template <typename A, typename T, unsigned N>
  requires(detail::first_of_bits<A, T, N>)
vector<T, N> bit_and(const A& a, const vector<T, N>& b) {
  return detail::bitwise(a, b, [](T x, T y) { return x & y; });
}
template <typename A, typename T, unsigned N>
  requires(detail::first_of_bits<A, T, N>)
vector<T, N> bit_or(const A& a, const vector<T, N>& b) {
  return detail::bitwise(a, b, [](T x, T y) { return x | y; });
}
template <typename T, unsigned N>
vector<T, N> upshift(const vector<T, N>& v, unsigned by) {
  static_assert(!detail::is_floating<T>, "AIE: shifts take integers; use cast_to");
  detail::check(by < detail::bits_of<T>, "shift of as many bits as a lane has, or more");
  return detail::lanewise(
      v, v, [by](T x, T) { return static_cast<T>(static_cast<std::make_unsigned_t<T>>(x) << by); });
}
}  // namespace aie
