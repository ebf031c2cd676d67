// FlowKV (papers 1 and 2): attention of one token, a chunk of keys and values at a time, on a pair
// of cores. The score core does steps 1 to 5 of the papers on the key chunk, the value core steps 6
// and 7 on the value chunk; F, C and l pass between them through shared memory. If several pairs
// have a part of the keys each, the value cores merge Y and l by their maxima m.
//
// A chunk is 4096 bfloat16 of the cache, 8 KiB: 64 keys of head dimension 64, 32 of 128, 16 of 256.
// Keys and values lie in blocks of 8 keys x 8 dimensions, [keys/8][head_dim/8][8][8]. The score
// core multiplies a whole block of keys, 64 lanes, by 8 dimensions of q repeated for each key. The
// value core brings 32 dimensions of a value together and multiplies them by a probability: moves
// that the heads share, and no sums over lanes.
//
// Numerics (AIE2P): products of bfloat16 are exact and summed in fp32, none goes through bfp16. The
// scale costs 2^-15 of the score, the exponential 2^-15, F is rounded once to bfloat16 and l sums
// the rounded values that the value core uses, so the weights add up to one. C is a power of two
// (softmax.h): rescaling is exact. O = Y * (1/l) is within 2^-15 before its one rounding, if
// the core's scalar inverse is good to fp32.

#include "../common/softmax.h"

namespace {

constexpr int32_t kChunk = 4096;
constexpr int32_t kHeads = 32;
constexpr int32_t kOutputs = 2048;  // group * head_dim, at most
constexpr int32_t kBlock = 64;
constexpr int32_t kCorrectionByte = 4096;
constexpr int32_t kSumByte = 4224;
constexpr int32_t kMaxima = kOutputs + kHeads;  // in a part: Y, l, m

Halves<64> repeat_dims(const bfloat16* q) { return aie::load_v<8>(q).grow_replicate<64>(); }

// Products of two query heads with 16 keys: [head][key].
Floats<32> dot_products(const bfloat16* __restrict q, const bfloat16* __restrict k,
                        int32_t head_dim) {
  const bfloat16* q_next = q + head_dim;
  const bfloat16* k_next = k + 8 * head_dim;
  Sums<64> sums[4] = {aie::zeros<accfloat, 64>(), aie::zeros<accfloat, 64>(),
                      aie::zeros<accfloat, 64>(), aie::zeros<accfloat, 64>()};
  LOOP_TRIPS(head_dim / 8, 8, 32)
  for (int32_t dim = 0; dim < head_dim; dim += 8) {
    const Halves<64> k0 = aie::load_v<64>(k + 8 * dim);
    const Halves<64> k1 = aie::load_v<64>(k_next + 8 * dim);
    const Halves<64> q0 = repeat_dims(q + dim);
    const Halves<64> q1 = repeat_dims(q_next + dim);
    sums[0] = aie::mac(sums[0], k0, q0);
    sums[1] = aie::mac(sums[1], k1, q0);
    sums[2] = aie::mac(sums[2], k0, q1);
    sums[3] = aie::mac(sums[3], k1, q1);
  }
  return fold_columns<float>(
      {to_floats(sums[0]), to_floats(sums[1]), to_floats(sums[2]), to_floats(sums[3])}, kAdd);
}

template <typename T>
aie::vector<T, 32> halves_of(T first, T second) {
  return aie::concat(aie::broadcast<T, 16>(first), aie::broadcast<T, 16>(second));
}

// The first `count` bits of 16.
uint32_t first_bits(int32_t count) {
  return count >= 16 ? 0xFFFFu : count > 0 ? (1u << count) - 1 : 0u;
}

// Of 16 keys, those from `begin` to before `end`, for two heads.
aie::mask<32> keys_between(int32_t begin, int32_t end) {
  const uint32_t bits = first_bits(end) & ~first_bits(begin);
  return aie::mask<32>::from_uint32(bits << 16 | bits);
}

// Rows of V of two keys, 32 dimensions, times the probabilities at `at` and after it; those of a
// head are `keys` after those of the head before.
template <size_t kTogether>
inline void add_rows(std::array<Sums<32>, kTogether>& sums, const bfloat16* __restrict f,
                     int32_t keys, unsigned at, const Halves<32>& row, const Halves<32>& next) {
  LOOP_UNROLL_FULL
  for (size_t head = 0; head < kTogether; ++head) {
    const Halves<8> weights = aie::load_v<8>(f + static_cast<int32_t>(head) * keys);
    const auto weight = [&](unsigned i) {
      return aie::broadcast<bfloat16, 32>(static_cast<bfloat16>(weights[i]));
    };
    sums[head] = aie::mac(sums[head], row, weight(at));
    sums[head] = aie::mac(sums[head], next, weight(at + 1));
  }
}

// Y += F V of some heads, 32 dimensions at a time. A lane is a dimension, so that nothing is summed
// over lanes. Halves of four blocks, 4 keys x 8 dimensions each, are put side by side; the heads
// share that, and a row is used up before the next, for there are twelve registers.
template <int32_t kTogether>
void add_values(const bfloat16* __restrict f, const bfloat16* __restrict v, float* __restrict y,
                int32_t head_dim, int32_t keys) {
  for (int32_t dim = 0; dim < head_dim; dim += 32) {
    std::array<Sums<32>, kTogether> sums;
    LOOP_UNROLL_FULL
    for (int32_t head = 0; head < kTogether; ++head) {
      sums[head] = Sums<32>(load_floats<32>(y + head * head_dim + dim));
    }
    LOOP_TRIPS(keys / 16, 1, 4)
    for (int32_t first = 0; first < keys; first += 16) {
      LOOP_UNROLL_FULL
      for (int32_t i = 0; i < 16; i += 4) {
        const int32_t block = first + (i & 8);
        const bfloat16* half = v + block * head_dim + 8 * (dim + (i & 4));
        const auto [left, left_next] =
            aie::interleave_zip(aie::load_v<32>(half), aie::load_v<32>(half + kBlock), 8);
        const auto [right, right_next] = aie::interleave_zip(aie::load_v<32>(half + 2 * kBlock),
                                                             aie::load_v<32>(half + 3 * kBlock), 8);
        const auto [row0, row1] = aie::interleave_zip(left, right, 16);
        add_rows(sums, f + block, keys, i & 4, row0, row1);
        const auto [row2, row3] = aie::interleave_zip(left_next, right_next, 16);
        add_rows(sums, f + block, keys, (i & 4) + 2, row2, row3);
      }
    }
    LOOP_UNROLL_FULL
    for (int32_t head = 0; head < kTogether; ++head) {
      aie::store_v(y + head * head_dim + dim, to_floats(sums[head]));
    }
  }
}

// F of two heads, [head][key], from their scores t, [key/16][head][16 keys], in vectors of kLanes,
// and their sums over the keys, in two halves.
template <unsigned kLanes>
Floats<32> probabilities_of(const float* scores, const Floats<32>& m, bfloat16* __restrict f,
                            int32_t keys) {
  Floats<kLanes> maxima;
  LOOP_UNROLL_FULL
  for (unsigned i = 0; i < kLanes / 32; ++i) maxima.insert(i, m);
  Sums<32> sum = aie::zeros<accfloat, 32>();
  LOOP_TRIPS(2 * keys / kLanes, 1, 2)
  for (int32_t key = 0; key < keys; key += kLanes / 2) {
    const Floats<kLanes> t = load_floats<kLanes>(scores + 2 * key);
    const Halves<kLanes> weights = exp2_fine(aie::sub(t, maxima)).to_bfloat16();
    LOOP_UNROLL_FULL
    for (unsigned i = 0; i < kLanes / 32; ++i) {
      const Halves<32> part = weights.template extract<32>(i);
      sum = aie::add(sum, Sums<32>(part));
      aie::store_v(f + key + 16 * i, part.template extract<16>(0));
      aie::store_v(f + keys + key + 16 * i, part.template extract<16>(1));
    }
  }
  return to_floats(sum);
}

}  // namespace

extern "C" {

// q[index * 64 ..] = piece.
void flow_kv_load_q(bfloat16* __restrict piece, bfloat16* __restrict q, int32_t index) {
  copy_bf16(piece, q + index * 64, 64);
}

// state: the running maxima m[32], then the sums l[32].
void flow_kv_begin(float* __restrict state) {
  fill(state, kHeads, kNoMaximum);
  fill(state + kHeads, kHeads, 0.0f);
}

// F, C and l of the keys begin .. end - 1 of a chunk (at least one), for `group` query heads two at
// a time: 32 lanes are 16 keys of one head and 16 of the next. There are at most 32
// heads, and group * head_dim is at most 2048; an odd group computes one extra head from leftover
// data.
void flow_kv_scores(bfloat16* __restrict q, bfloat16* __restrict k, uint8_t* __restrict fcl,
                    float* __restrict state, int32_t group, int32_t head_dim, int32_t begin,
                    int32_t end, int32_t scale_bits, int32_t softcap_bits) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const ScoreMap to_log2(scale_bits, softcap_bits);
  const int32_t keys = kChunk >> log2_of(head_dim);
  bfloat16* f = reinterpret_cast<bfloat16*>(fcl);

  alignas(64) float scores[4 * 32];
  alignas(64) float maxima[kHeads];
  alignas(64) float sums[kHeads];
  const Floats<32> m_left = aie::load_v<32>(state);
  const Floats<32> l_left = aie::load_v<32>(state + kHeads);
  aie::store_v(maxima, m_left);
  aie::store_v(sums, constant<32>(0.0f));

  for (int32_t head = 0; head < group; head += 2) {
    LOOP_TRIPS(keys / 16, 1, 4)
    for (int32_t key = 0; key < keys; key += 16) {
      aie::store_v(scores + 2 * key,
                   dot_products(q + head * head_dim, k + key * head_dim, head_dim));
    }
    to_log2.apply(scores, 2 * keys);
    Halves<32> largest =
        halves_of(static_cast<bfloat16>(state[head]), static_cast<bfloat16>(state[head + 1]));
    LOOP_TRIPS(keys / 16, 1, 4)
    for (int32_t key = 0; key < keys; key += 16) {
      const Floats<32> t =
          aie::select(constant<32>(kMaskedScore), load_floats<32>(scores + 2 * key),
                      keys_between(begin - key, end - key));
      largest = aie::max(largest, to_bf16(t));
      aie::store_v(scores + 2 * key, t);
    }
    const Floats<32> m = nearest_integer(to_floats(halves_of<bfloat16>(
        aie::reduce_max(largest.extract<16>(0)), aie::reduce_max(largest.extract<16>(1)))));
    maxima[head] = m.get(0);
    maxima[head + 1] = m.get(16);

    bfloat16* weights = f + head * keys;
    const Floats<32> sum = keys == 16 ? probabilities_of<32>(scores, m, weights, keys)
                                      : probabilities_of<64>(scores, m, weights, keys);
    sums[head] = aie::reduce_add(sum.extract<16>(0));
    sums[head + 1] = aie::reduce_add(sum.extract<16>(1));
  }

  const Floats<32> m = aie::load_v<32>(maxima);
  const Halves<32> c = two_to(aie::sub(m_left, m));
  const Floats<32> l = aie::add(scale_exactly(l_left, c), aie::load_v<32>(sums));
  aie::store_v(state, m);
  aie::store_v(state + kHeads, l);
  aie::store_v(reinterpret_cast<float*>(fcl + kCorrectionByte), to_floats(c));
  aie::store_v(reinterpret_cast<float*>(fcl + kSumByte), l);
}

// y: Y row-major [group][head_dim] in 2048 floats, then l[32].
void flow_kv_values_begin(float* __restrict y) { fill(y, kOutputs + kHeads, 0.0f); }

// Y = C * Y + F V.
void flow_kv_values(uint8_t* __restrict fcl, bfloat16* __restrict v, float* __restrict y,
                    int32_t group, int32_t head_dim) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const int32_t keys = kChunk >> log2_of(head_dim);
  const bfloat16* f = reinterpret_cast<const bfloat16*>(fcl);
  const float* c = reinterpret_cast<const float*>(fcl + kCorrectionByte);

  for (int32_t head = 0; head < group; ++head) {
    float* row = y + head * head_dim;
    if (__builtin_bit_cast(int32_t, c[head]) != __builtin_bit_cast(int32_t, 1.0f)) {
      const auto power = aie::broadcast<bfloat16, 32>(static_cast<bfloat16>(c[head]));
      LOOP_TRIPS(head_dim / 32, 2, 8)
      for (int32_t dim = 0; dim < head_dim; dim += 32) {
        aie::store_v(row + dim, scale_exactly(load_floats<32>(row + dim), power));
      }
    }
  }
  int32_t head = 0;
  for (; head + 4 <= group; head += 4) {
    add_values<4>(f + head * keys, v, y + head * head_dim, head_dim, keys);
  }
  if (group & 2) {
    add_values<2>(f + head * keys, v, y + head * head_dim, head_dim, keys);
    head += 2;
  }
  if (group & 1) {
    add_values<1>(f + head * keys, v, y + head * head_dim, head_dim, keys);
  }
  aie::store_v(y + kOutputs, load_floats<32>(reinterpret_cast<const float*>(fcl + kSumByte)));
}

// maxima = m.
void flow_kv_give_maxima(float* __restrict state, float* __restrict maxima) {
  aie::store_v(maxima, aie::load_v<32>(state));
}

// part = Y, l and m of the keys so far, for the pair that has others.
void flow_kv_pass(float* __restrict y, float* __restrict maxima, float* __restrict part) {
  LOOP_TRIPS(kMaxima / 16, 130, 130)
  for (int32_t i = 0; i < kMaxima; i += 16) {
    aie::store_v(part + i, aie::load_v<16>(y + i));
  }
  aie::store_v(part + kMaxima, load_floats<32>(maxima));
}

// Adds another pair's part: y and maxima become those of the keys of both. Maxima are integers that
// bfloat16 holds.
void flow_kv_merge(float* __restrict y, float* __restrict maxima, float* __restrict part,
                   int32_t group, int32_t head_dim) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const Floats<32> m_own = load_floats<32>(maxima), m_part = load_floats<32>(part + kMaxima);
  const Floats<32> m = to_floats(aie::max(to_bf16(m_own), to_bf16(m_part)));
  const Halves<32> c_own = two_to(aie::sub(m_own, m)), c_part = two_to(aie::sub(m_part, m));
  const auto sum = [](const float* own, const Halves<32>& own_power, const float* part,
                      const Halves<32>& part_power) {
    return aie::add(scale_exactly(load_floats<32>(own), own_power),
                    scale_exactly(load_floats<32>(part), part_power));
  };
  alignas(64) bfloat16 powers[2 * kHeads];
  aie::store_v(powers, c_own);
  aie::store_v(powers + kHeads, c_part);
  aie::store_v(maxima, m);
  aie::store_v(y + kOutputs, sum(y + kOutputs, c_own, part + kOutputs, c_part));
  for (int32_t head = 0; head < group; ++head) {
    const auto own_power = aie::broadcast<bfloat16, 32>(powers[head]);
    const auto part_power = aie::broadcast<bfloat16, 32>(powers[kHeads + head]);
    const int32_t end = (head + 1) * head_dim;
    LOOP_TRIPS(head_dim / 32, 2, 8)
    for (int32_t at = head * head_dim; at < end; at += 32) {
      aie::store_v(y + at, sum(y + at, own_power, part + at, part_power));
    }
  }
}

// Elements index * 64 .. of O = Y / l.
void flow_kv_output(float* __restrict y, bfloat16* __restrict o, int32_t index, int32_t head_dim) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const int32_t head = (index * 64) >> log2_of(head_dim);
  const ScalarLimbs inverse_sum(aie::inv(y[kOutputs + head]));
  for (int32_t i = 0; i < 64; i += 32) {
    const Limbs<32> numerator(load_floats<32>(y + index * 64 + i));
    aie::store_v(o + i, to_bf16(product(numerator, inverse_sum)));
  }
}

}  // extern "C"
