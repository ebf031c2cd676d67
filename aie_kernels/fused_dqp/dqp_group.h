// What FusedDQP's kernels for codes of two and four bits share: a group of 32 in-features, whose
// scale and minimum apply to its dot product and to the sum of its activations.
#pragma once

#include "../common/q4nx_block.h"

namespace dqp {

constexpr unsigned limbs = 2 * q4nx::groups;  // sums of a block's groups: [8 groups][hi, lo]

using row_vector = aie::vector<bfloat16, q4nx::rows>;
using row_total = aie::accum<accfloat, q4nx::rows>;
using group_totals = aie::vector<float, q4nx::groups>;
using partial_sums = aie::vector<float, 16>;  // 16 of one group, 8 of each of two, and so on

inline partial_sums add_halves(const aie::accum<accfloat, q4nx::group>& values) {
  return aie::add(values.extract<16>(0), values.extract<16>(1)).template to_vector<float>();
}

// Half as many sums of twice as many groups: neighbours are added.
inline partial_sums add_neighbours(const partial_sums& first, const partial_sums& second) {
  const auto [even, odd] = aie::interleave_unzip(first, second, 1);
  return aie::add(even, odd);
}

// All groups are added at once, because a group alone is a chain of five dependent additions.
inline group_totals add_groups(const partial_sums (&of)[q4nx::groups]) {
  const partial_sums low =
      add_neighbours(add_neighbours(of[0], of[1]), add_neighbours(of[2], of[3]));
  const partial_sums high =
      add_neighbours(add_neighbours(of[4], of[5]), add_neighbours(of[6], of[7]));
  const partial_sums pairs = add_neighbours(low, high);
  return aie::add(aie::filter_even(pairs, 1), aie::filter_odd(pairs, 1));
}

// Stores eight fp32 sums as two limbs each.
inline void store_limbs(bfloat16* sums, const group_totals& totals) {
  const aie::accum<accfloat, q4nx::groups> total(totals);
  const aie::vector<bfloat16, q4nx::groups> hi = total.to_vector<bfloat16>();
  const aie::accum<accfloat, q4nx::groups> coarse(hi);
  const aie::vector<bfloat16, q4nx::groups> lo = aie::sub(total, coarse).to_vector<bfloat16>();
  const auto [first, second] = aie::interleave_zip(hi, lo, 1);
  aie::store_v(sums, aie::concat(first, second));
}

// total + scale * dot + minimum * (sum_hi + sum_lo), for group g. The sums carry the minimum's
// factor.
inline row_total add_group(row_total total, const row_total& dot, const uint8_t* block,
                           const q4nx::form& form, unsigned g, const row_vector& sum_hi,
                           const row_vector& sum_lo) {
  const row_vector dot_hi = dot.to_vector<bfloat16>();
  const row_total coarse(dot_hi);
  const row_vector dot_lo = aie::sub(dot, coarse).to_vector<bfloat16>();
  const row_vector scale = aie::load_v<q4nx::rows>(form.scales_of(block, g));
  const row_vector minimum = aie::load_v<q4nx::rows>(form.minima_of(block, g));
  total = aie::mac(total, scale, dot_hi);
  total = aie::mac(total, scale, dot_lo);
  total = aie::mac(total, minimum, sum_hi);
  return aie::mac(total, minimum, sum_lo);
}

}  // namespace dqp
