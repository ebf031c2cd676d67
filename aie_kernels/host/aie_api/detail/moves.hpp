// Building vectors and moving lanes.
#pragma once

#include "accum.hpp"

namespace aie {

template <typename T, unsigned N>
vector<T, N> broadcast(std::type_identity_t<T> value) {
  return detail::generate<vector<T, N>>([value](unsigned) { return value; });
}

template <typename T, unsigned N>
  requires(detail::element_traits<T>::exists)
vector<T, N> zeros() {
  vector<T, N> result{detail::unfilled{}};
  std::memset(static_cast<void*>(&detail::host::lanes(result)), 0,
              sizeof detail::host::lanes(result));
  return result;
}
template <typename Tag, unsigned N>
  requires(std::is_same_v<Tag, accfloat>)
accum<Tag, N> zeros() {
  return detail::generate<accum<Tag, N>>([](unsigned) { return 0; });
}

// Low to high; two or more, all of one width.
template <typename T, unsigned N, typename... More>
  requires(sizeof...(More) > 0 && (std::is_same_v<vector<T, N>, More> && ...))
auto concat(const vector<T, N>& first, const More&... more) {
  vector<T, N * (1 + sizeof...(More))> result{detail::unfilled{}};
  unsigned part = 0;
  result.insert(part++, first);
  (result.insert(part++, more), ...);
  return result;
}
template <typename Tag, unsigned N, typename... More>
  requires(sizeof...(More) > 0 && (std::is_same_v<accum<Tag, N>, More> && ...))
auto concat(const accum<Tag, N>& first, const More&... more) {
  accum<Tag, N * (1 + sizeof...(More))> result{detail::unfilled{}};
  unsigned part = 0;
  result.insert(part++, first);
  (result.insert(part++, more), ...);
  return result;
}

// A clear bit takes `zero`, a set bit `one`; either may be a scalar.
template <typename A, typename B, unsigned N>
auto select(const A& zero, const B& one, const mask<N>& chosen) {
  using T = std::conditional_t<detail::operand<A>::is_vector, detail::element_of<A>,
                               detail::element_of<B>>;
  detail::check_same_elements<A, B>();
  static_assert(!detail::operand<A>::is_vector || detail::operand<A>::lanes == N,
                "AIE: select needs as many lanes as the mask has");
  static_assert(!detail::operand<B>::is_vector || detail::operand<B>::lanes == N,
                "AIE: select needs as many lanes as the mask has");
  const auto a = detail::reader<T>(zero);
  const auto b = detail::reader<T>(one);
  const auto& bits = detail::host::lanes(chosen);
  return detail::generate<vector<T, N>>(
      [&](unsigned lane) { return bits[lane] ? b(lane) : a(lane); });
}

namespace detail {

inline void chunk_must_be_a_power_of_two_of_at_least_8_bits_and_at_most_the_vector() {}

// How many lanes move together: a constant, checked by the compiler.
template <typename T, unsigned N>
struct chunk {
  unsigned lanes;
  consteval chunk(unsigned n) : lanes(n) {
    if (!is_power_of_two(n) || n > N || n * bits_of<T> < 8) {
      chunk_must_be_a_power_of_two_of_at_least_8_bits_and_at_most_the_vector();
    }
  }
};
template <typename T, unsigned N>
using chunk_of = std::type_identity_t<chunk<T, N>>;

// Lane storages of `v` and `w` in a row, taken as `source(position)` says.
template <typename T, unsigned N, typename F>
vector<T, N> take(const vector<T, N>& v, const vector<T, N>& w, F source) {
  vector<T, N> result{unfilled{}};
  auto& to = host::lanes(result);
  const auto& low = host::lanes(v);
  const auto& high = host::lanes(w);
  const auto n = static_cast<unsigned>(to.size());
  for (unsigned i = 0; i < n; ++i) {
    const unsigned from = source(i);
    to[i] = from < n ? low[from] : high[from - n];
  }
  return result;
}

template <typename T, unsigned N>
unsigned chunk_storages(chunk<T, N> c) {
  return element_traits<T>::storages(c.lanes);
}

}  // namespace detail

template <typename T, unsigned N>
std::pair<vector<T, N>, vector<T, N>> interleave_zip(const vector<T, N>& v, const vector<T, N>& w,
                                                     detail::chunk_of<T, N> chunk) {
  const unsigned c = detail::chunk_storages<T, N>(chunk);
  const unsigned n = detail::element_traits<T>::storages(N);
  const auto zipped = [c, n](unsigned i) { return i / (2 * c) * c + i % c + i / c % 2 * n; };
  return {detail::take(v, w, zipped),
          detail::take(v, w, [=](unsigned i) { return zipped(i + n); })};
}

template <typename T, unsigned N>
vector<T, N / 2> filter_even(const vector<T, N>& v, detail::chunk_of<T, N / 2> chunk) {
  const unsigned c = detail::element_traits<T>::storages(chunk.lanes);
  const auto whole = detail::take(v, v, [c](unsigned i) { return i / c * 2 * c + i % c; });
  return whole.template extract<N / 2>(0);
}
template <typename T, unsigned N>
vector<T, N / 2> filter_odd(const vector<T, N>& v, detail::chunk_of<T, N / 2> chunk) {
  const unsigned c = detail::element_traits<T>::storages(chunk.lanes);
  const unsigned n = detail::element_traits<T>::storages(N);
  const auto whole =
      detail::take(v, v, [c, n](unsigned i) { return (i / c * 2 * c + c + i % c) % (2 * n); });
  return whole.template extract<N / 2>(0);
}

// The even chunks of v then of w, and the odd ones.
template <typename T, unsigned N>
std::pair<vector<T, N>, vector<T, N>> interleave_unzip(const vector<T, N>& v, const vector<T, N>& w,
                                                       detail::chunk_of<T, N> chunk) {
  const unsigned c = detail::chunk_storages<T, N>(chunk);
  const auto even = [c](unsigned i) { return i / c * 2 * c + i % c; };
  return {detail::take(v, w, even), detail::take(v, w, [=](unsigned i) { return even(i) + c; })};
}

// v is row-major rows x columns.
template <typename T, unsigned N>
vector<T, N> transpose(const vector<T, N>& v, unsigned rows, unsigned columns) {
  static_assert(!detail::is_four_bit<T>, "AIE: transpose of four-bit lanes is not modelled");
  detail::check(rows * columns == N, "transpose: rows * columns must be the lane count");
  return detail::take(v, v, [=](unsigned i) { return i % rows * columns + i / rows; });
}

}  // namespace aie
