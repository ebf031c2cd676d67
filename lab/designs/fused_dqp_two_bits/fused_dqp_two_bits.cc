// FusedDQP for codes of two bits: a matrix-vector product from bit planes (paper 4's layout, with
// multiplications instead of its tables; paper 1, III-A for the rest). `fused_dqp.cc` has the
// kernels around a block.
//
// A Q2NX block is a shipping Q4NX block (q4nx_block.h) of 3,072 bytes with other codes:
//
//   bytes 1024 .. 3071   codes: byte (k / 4) * 32 + (n / 2) * 2 + plane, low nibble for even n; bit
//                        k % 4 of the nibble is bit `plane` of the code
//
// Or-ed into 128 as in q4nx_block.h, a nibble has the bits of four in-features. One `and` leaves
// that of one of them: 128 + bit * 2^j with j = k % 4. Nothing is shifted; the activations are kept
// as x * 2^-j instead, which is exact down to 2^-123. A lane has one plane of an out-feature.
//
// Numerics, per out-feature and group of 32, with x' = x * 2^-j:
//
//   plane = sum (128 + bit * 2^j) x' - 128 sum x'      fp32, starting with the last term
//   dot   = plane 0 + 2 * plane 1
//   sum  += scale * dot + min * S                      as in fused_dqp.cc
//
// Products are exact. Errors of dot per group stay below 3 * (21 * 264 + 32 * 128) * 2^-24 *
// sum |x'|; sum |x'| is half of sum |x| for activations of one size.

#include "../../../aie_kernels/common/loop_hints.h"
#include "../../../aie_kernels/fused_dqp/dqp_group.h"

namespace {

constexpr unsigned slice = q4nx::columns;
constexpr unsigned quad = 4;  // in-features of a nibble
constexpr unsigned planes = 2;
constexpr unsigned lanes = planes * q4nx::rows;  // [16 pairs of n][2 planes][2 n]
constexpr unsigned chains = 2;
// Lanes of a native mac that need no move to join or part operands.
#if __AIE_ARCH__ == 21
constexpr unsigned mac_lanes = 32;
#else
constexpr unsigned mac_lanes = 16;
#endif
constexpr unsigned parts = lanes / mac_lanes;

using activations = aie::vector<bfloat16, q4nx::group>;
using part_sums = aie::accum<accfloat, mac_lanes>;
using accumulators = part_sums[chains][parts];

// 1, 1/2, 1/4, 1/8, again and again.
inline activations quad_scales() {
  constexpr unsigned half = q4nx::group / 2;
  const auto ones = aie::broadcast<bfloat16, half>(bfloat16(1.0f));
  const auto halves = aie::broadcast<bfloat16, half>(bfloat16(0.5f));
  const auto quarters = aie::broadcast<bfloat16, half>(bfloat16(0.25f));
  const auto eighths = aie::broadcast<bfloat16, half>(bfloat16(0.125f));
  const auto first = aie::interleave_zip(ones, halves, 1).first;
  const auto last = aie::interleave_zip(quarters, eighths, 1).first;
  const auto [low, high] = aie::interleave_zip(first, last, 2);
  return aie::concat(low, high);
}

// Adds the products of four in-features, whose nibbles are given, x[k] .. x[k + 3] theirs.
inline void accumulate(accumulators& sums, const aie::vector<uint4, lanes>& nibbles,
                       const activations& x, unsigned k) {
  const aie::vector<uint16, lanes> all =
      aie::bit_or(static_cast<uint16>(0x4300), nibbles.unpack().unpack());
  LOOP_UNROLL_FULL
  for (unsigned j = 0; j < quad; ++j) {
    const aie::vector<bfloat16, lanes> bits =
        aie::bit_and(static_cast<uint16>(0x4300 | 1u << j), all).cast_to<bfloat16>();
    const aie::vector<bfloat16, mac_lanes> xs =
        aie::broadcast<bfloat16, mac_lanes>(bfloat16(x[k + j]));
    for (unsigned part = 0; part < parts; ++part) {
      part_sums& sum = sums[j % chains][part];
      sum = aie::mac(sum, bits.extract<mac_lanes>(part), xs);
    }
  }
}

// plane 0 + 2 * plane 1, for the out-features of a part.
inline aie::accum<accfloat, mac_lanes / 2> join_planes(const accumulators& sums, unsigned part) {
  const aie::vector<float, mac_lanes> both =
      aie::add(sums[0][part], sums[1][part]).to_vector<float>();
  const aie::accum<accfloat, mac_lanes / 2> low(aie::filter_even(both, 2));
  const aie::accum<accfloat, mac_lanes / 2> high(aie::filter_odd(both, 2));
  return aie::add(low, aie::add(high, high));
}

inline dqp::row_total join_parts(const accumulators& sums) {
#if __AIE_ARCH__ == 21
  return aie::concat(join_planes(sums, 0), join_planes(sums, 1));
#else
  return aie::concat(aie::concat(join_planes(sums, 0), join_planes(sums, 1)),
                     aie::concat(join_planes(sums, 2), join_planes(sums, 3)));
#endif
}

// sum code * x of the group that begins with in-feature `first`; `offset` is -128 sum x'.
inline dqp::row_total plane_dot(const uint8_t* block, unsigned first, const activations& x,
                                float offset) {
  accumulators sums;
  for (unsigned part = 0; part < parts; ++part) {
    sums[0][part] = part_sums(aie::broadcast<float, mac_lanes>(offset));
    sums[1][part] = aie::zeros<accfloat, mac_lanes>();
  }
  const uint8_t* codes = block + q4nx::shipping.codes_offset() + first / quad * (lanes / 2);
  LOOP_UNROLL_FULL
  for (unsigned k = 0; k < q4nx::group; k += 2 * quad) {
    const aie::vector<uint4, 2 * lanes> two =
        aie::load_v<2 * lanes>(reinterpret_cast<const uint4*>(codes + k / quad * (lanes / 2)));
    accumulate(sums, two.extract<lanes>(0), x, k);
    accumulate(sums, two.extract<lanes>(1), x, k + quad);
  }
  return join_parts(sums);
}

}  // namespace

extern "C" {

// Keeps a slice of activations as x', of each group its sum as two limbs, and -128 sum x'.
void dqp_load_x_two_bits(const bfloat16* __restrict piece, bfloat16* __restrict x,
                         bfloat16* __restrict sums, float* __restrict offsets, int32_t index) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  bfloat16* resident = x + index * slice;
  float* own = offsets + index * q4nx::groups;
  const activations scales = quad_scales();
  dqp::partial_sums parts[q4nx::groups];
  dqp::partial_sums scaled_parts[q4nx::groups];
  LOOP_UNROLL_FULL
  for (unsigned g = 0; g < q4nx::groups; ++g) {
    const activations values = aie::load_v<q4nx::group>(piece + g * q4nx::group);
    const aie::accum<accfloat, q4nx::group> exact(values);
    parts[g] = dqp::add_halves(exact);
    const aie::accum<accfloat, q4nx::group> scaled = aie::mul(values, scales);
    aie::store_v(resident + g * q4nx::group, scaled.to_vector<bfloat16>());
    scaled_parts[g] = dqp::add_halves(scaled);
  }
  dqp::store_limbs(sums + index * dqp::limbs, dqp::add_groups(parts));
  aie::store_v(own, aie::mul(dqp::add_groups(scaled_parts), -q4nx::code_bias).to_vector<float>());
  event1();
}

// acc[n] += sum over k of weight(n, k) * x[k_block * 256 + k].
void dqp_block_two_bits(const uint8_t* __restrict block, const bfloat16* __restrict x,
                        const bfloat16* __restrict sums, const float* __restrict offsets,
                        float* __restrict acc, int32_t k_block) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  constexpr unsigned n = q4nx::rows;
  const bfloat16* x_block = x + k_block * slice;
  const float* own = offsets + k_block * q4nx::groups;
  const aie::vector<bfloat16, dqp::limbs> group_sums =
      aie::load_v<dqp::limbs>(sums + k_block * dqp::limbs);
  dqp::row_total total(aie::load_v<n>(acc));
  LOOP_TRIPS(q4nx::groups, 8, 8)
  LOOP_NO_UNROLL
  for (unsigned g = 0; g < q4nx::groups; ++g) {
    const unsigned first = g * q4nx::group;
    const activations xs = aie::load_v<q4nx::group>(x_block + first);
    const auto sum_hi = aie::broadcast<bfloat16, n>(bfloat16(group_sums[2 * g]));
    const auto sum_lo = aie::broadcast<bfloat16, n>(bfloat16(group_sums[2 * g + 1]));
    const dqp::row_total dot = plane_dot(block, first, xs, own[g]);
    total = dqp::add_group(total, dot, block, q4nx::shipping, g, sum_hi, sum_lo);
  }
  aie::store_v(acc, total.to_vector<float>());
  event1();
}

}  // extern "C"
