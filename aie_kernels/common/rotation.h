// The rotary embedding of pairs, which a token's (rope.cc) and a prompt's (row_operators.cc) share.
//
// Numerics: a rotation is two exact products added in fp32 and rounded once.
#pragma once

#include "float_math.h"

template <unsigned N>
struct Pairs {
  Halves<N> first, second;
};

template <unsigned N>
inline Pairs<N> rotated(const Pairs<N>& x, const Halves<N>& cosine, const Halves<N>& sine) {
  return {aie::msc(aie::mul(x.first, cosine), x.second, sine).template to_vector<bfloat16>(),
          aie::mac(aie::mul(x.second, cosine), x.first, sine).template to_vector<bfloat16>()};
}

// Neighbours as pairs, and back.
template <unsigned N>
inline Pairs<N / 2> neighbours(const Halves<N>& x) {
  return {aie::filter_even(x, 1), aie::filter_odd(x, 1)};
}
template <unsigned N>
inline Halves<2 * N> side_by_side(const Pairs<N>& x) {
  const auto [low, high] = aie::interleave_zip(x.first, x.second, 1);
  return aie::concat(low, high);
}
