// FusedDQP: dequantisation fused with a matrix-vector product (paper 1, III-A; paper 2, 3.2.1).
//
// A core keeps the activations x and holds the sums of a tile of 32 out-features while the tile's
// Q4NX blocks stream by. Of a block it never writes weights: sub-blocks of 16 x 8 go from one load
// to the macs, and the sums stay in registers for the block.
//
// Numerics, per out-feature and group of 32: with c = code, S = sum of x,
//
//   dot  = sum (128 + c) x - 128 S     fp32; codes come biased by 128 (q4nx_block.h)
//   sum += scale * dot + min * S
//
// Products are exact, sums fp32. dot enters the product with scale, and S both products, as two
// bfloat16 limbs (hi = bf16(v), lo = bf16(v - hi)), which leave 2^-17 of the value. Errors per
// group stay below scale * (34 * 143 * 2^-24 * sum |x| + 2^-10 |S|), a twentieth of what rounding
// weights to bfloat16 would cost.
//
// Without stored minima, min * S is scale * (-8 S), the same product: the limbs of S are multiplied
// by -8, which is exact.

#include "../common/design_limits.h"
#include "../common/loop_hints.h"
#include "dqp_group.h"

namespace {

constexpr unsigned slice = q4nx::columns;
using dqp::limbs;
using activations = aie::vector<bfloat16, q4nx::group>;
using row_sums = aie::accum<accfloat, q4nx::sub_rows>;

// x[k] for 16 out-features.
inline aie::vector<bfloat16, q4nx::sub_rows> copies(const activations& x, unsigned k) {
  return aie::broadcast<bfloat16, q4nx::sub_rows>(bfloat16(x[k]));
}

// A mac takes `mac_columns` in-features of 16 out-features; `chains` independent accumulators per
// half of the rows, so that it need not wait for the one before.
#if __AIE_ARCH__ == 21

constexpr unsigned mac_columns = 4;
constexpr unsigned chains = 2;

inline aie::vector<bfloat16, 64> spread(const activations& x, unsigned k) {
  return aie::concat(copies(x, k), copies(x, k + 1), copies(x, k + 2), copies(x, k + 3));
}

inline row_sums fold(const aie::accum<accfloat, 64> (&sums)[chains]) {
  constexpr unsigned n = q4nx::sub_rows;
  const aie::accum<accfloat, 64> both = aie::add(sums[0], sums[1]);
  return aie::add(aie::add(both.extract<n>(0), both.extract<n>(1)),
                  aie::add(both.extract<n>(2), both.extract<n>(3)));
}

#else

constexpr unsigned mac_columns = 1;
constexpr unsigned chains = 4;

inline aie::vector<bfloat16, 16> spread(const activations& x, unsigned k) { return copies(x, k); }

inline row_sums fold(const row_sums (&sums)[chains]) {
  return aie::add(aie::add(sums[0], sums[1]), aie::add(sums[2], sums[3]));
}

#endif

constexpr unsigned mac_lanes = mac_columns * q4nx::sub_rows;

using accumulators = aie::accum<accfloat, mac_lanes>[chains];

// Adds the products of half a sub-block of each half of the rows, in-features k .. k + 3.
inline void accumulate(accumulators& low, accumulators& high, const q4nx::half_block& low_codes,
                       const q4nx::half_block& high_codes, const activations& x, unsigned k) {
  LOOP_UNROLL_FULL
  for (unsigned i = 0; i < 4; i += mac_columns) {
    const unsigned step = i / mac_columns;
    const unsigned at = (k + i) / mac_columns % chains;
    const aie::vector<bfloat16, mac_lanes> xs = spread(x, k + i);
    low[at] = aie::mac(low[at], low_codes.extract<mac_lanes>(step), xs);
    high[at] = aie::mac(high[at], high_codes.extract<mac_lanes>(step), xs);
  }
}

// sum (128 + code) * x of the group that begins with in-feature `first`, for all 32 out-features.
inline aie::accum<accfloat, q4nx::rows> biased_dot(const uint8_t* codes, unsigned first,
                                                   const activations& x) {
  accumulators low;
  accumulators high;
  for (unsigned i = 0; i < chains; ++i) {
    low[i] = aie::zeros<accfloat, mac_lanes>();
    high[i] = aie::zeros<accfloat, mac_lanes>();
  }
  LOOP_UNROLL_FULL
  for (unsigned k = 0; k < q4nx::group; k += q4nx::sub_columns) {
    const q4nx::sub_block top = q4nx::load_codes(codes, 0, first + k);
    const q4nx::sub_block bottom = q4nx::load_codes(codes, 1, first + k);
    accumulate(low, high, top.first, bottom.first, x, k);
    accumulate(low, high, top.second, bottom.second, x, k + 4);
  }
  return aie::concat(fold(low), fold(high));
}

}  // namespace

extern "C" {

// Keeps a slice of activations, and of each group its sum as two limbs.
void dqp_load_x(const bfloat16* __restrict piece, bfloat16* __restrict x, bfloat16* __restrict sums,
                int32_t index) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  bfloat16* resident = x + index * slice;
  dqp::partial_sums parts[q4nx::groups];
  LOOP_UNROLL_FULL
  for (unsigned g = 0; g < q4nx::groups; ++g) {
    const aie::vector<bfloat16, q4nx::group> values =
        aie::load_v<q4nx::group>(piece + g * q4nx::group);
    aie::store_v(resident + g * q4nx::group, values);
    const aie::accum<accfloat, q4nx::group> exact(values);
    parts[g] = dqp::add_halves(exact);
  }
  dqp::store_limbs(sums + index * dqp::limbs, dqp::add_groups(parts));
  event1();
}

// A bias stream serves all tiles: 32 values per tile and round, in pieces of 8 tiles. A tile keeps
// its own values, round by round; the padding of the last piece belongs to no round.
void dqp_load_bias(const bfloat16* __restrict piece, bfloat16* __restrict bias, int32_t index,
                   int32_t tile, int32_t tiles) {
  constexpr int32_t tiles_per_piece = 8;
  event0();
  int32_t round = 0;
  int32_t next = index * tiles_per_piece;
  while (next >= tiles) {  // a division would be a library call
    next -= tiles;
    ++round;
  }
  for (int32_t i = 0; i < tiles_per_piece; ++i) {
    if (next == tile && round < design_limits::kBiasRounds) {
      aie::store_v(bias + round * q4nx::rows, aie::load_v<q4nx::rows>(piece + i * q4nx::rows));
    }
    if (++next == tiles) {
      next = 0;
      ++round;
    }
  }
  event1();
}

void dqp_zero(float* __restrict acc) {
  event0();
  aie::store_v(acc, aie::zeros<float, q4nx::rows>());
  event1();
}

// acc[n] += sum over k of weight(n, k) * x[k_block * 256 + k]. `scales` and `minima` are the form.
void dqp_block(const uint8_t* __restrict block, const bfloat16* __restrict x,
               const bfloat16* __restrict sums, float* __restrict acc, int32_t k_block,
               int32_t scales, int32_t minima) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  constexpr unsigned n = q4nx::rows;
  const q4nx::form form(scales, minima);
  const uint8_t* codes = block + form.codes_offset();
  const bfloat16* x_block = x + k_block * slice;
  // All that follows takes the sums times the factor; so the bias is divided by it.
  const aie::accum<accfloat, limbs> scaled =
      aie::mul(aie::load_v<limbs>(sums + k_block * limbs), form.minimum_factor());
  const aie::vector<bfloat16, limbs> group_sums = scaled.to_vector<bfloat16>();
  const bfloat16 bias = minima != 0 ? bfloat16(q4nx::code_bias) : bfloat16(q4nx::code_bias / -8);
  aie::accum<accfloat, n> total(aie::load_v<n>(acc));
  LOOP_TRIPS(q4nx::groups, 8, 8)
  LOOP_NO_UNROLL
  for (unsigned g = 0; g < q4nx::groups; ++g) {
    const unsigned first = g * q4nx::group;
    const activations xs = aie::load_v<q4nx::group>(x_block + first);
    const aie::vector<bfloat16, n> sum_hi =
        aie::broadcast<bfloat16, n>(bfloat16(group_sums[2 * g]));
    const aie::vector<bfloat16, n> sum_lo =
        aie::broadcast<bfloat16, n>(bfloat16(group_sums[2 * g + 1]));

    aie::accum<accfloat, n> dot = biased_dot(codes, first, xs);
    dot = aie::msc(dot, sum_hi, bias);
    dot = aie::msc(dot, sum_lo, bias);
    total = dqp::add_group(total, dot, block, form, g, sum_hi, sum_lo);
  }
  aie::store_v(acc, total.to_vector<float>());
  event1();
}

// y = bf16(acc), or with `biased` bf16(acc + the bias of `round`): fp32 up to the one rounding.
void dqp_finish(const float* __restrict acc, const bfloat16* __restrict bias,
                bfloat16* __restrict y, int32_t round, int32_t biased) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  constexpr unsigned n = q4nx::rows;
  aie::vector<float, n> values = aie::load_v<n>(acc);
  if (biased) {
    const aie::accum<accfloat, n> offset(aie::load_v<n>(bias + round * n));
    values = aie::add(values, offset.to_vector<float>());
  }
  const aie::accum<accfloat, n> result(values);
  aie::store_v(y, result.to_vector<bfloat16>());
  event1();
}

}  // extern "C"
