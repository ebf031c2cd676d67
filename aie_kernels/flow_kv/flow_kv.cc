// FlowKV (papers 1 and 2): attention of one token, a chunk of keys and values at a time, on a pair
// of cores. The score core does steps 1 to 5 of the papers on the key chunk, the value core steps 6
// and 7 on the value chunk; F, C and l pass between them through shared memory. If several pairs
// have a part of the keys each, the value cores merge Y and l by their maxima m.
//
// A chunk is 4096 bfloat16 of the cache, 8 KiB: 64 keys of head dimension 64, 32 of 128, 16 of 256.
// Keys and values lie in blocks of 8 keys x 8 dimensions, [keys/8][head_dim/8][8][8]. Both cores
// multiply rows of blocks, 8 columns wide, by one factor a row, and sum over rows: the value core
// takes the blocks as they lie, with probabilities as factors; the score core transposes them once
// for all heads, with elements of q as factors. Sums over rows need few shuffles, those over
// columns many.
//
// The score core walks through up to 8 heads in loops that each do one thing to all of them: short
// loops pipeline, and a long chain of operations that is not waited for costs its issues alone.
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
constexpr int32_t kPairs = 4;        // of heads whose scores are kept at a time
constexpr int32_t kScores = 4 * 32;  // of a pair, at most
constexpr int32_t kCorrectionByte = 4096;
constexpr int32_t kSumByte = 4224;
constexpr int32_t kMaxima = kOutputs + kHeads;  // in a part: Y, l, m

// Sums of two heads over rows: of two blocks side by side, [block][4 rows][8 columns].
template <size_t kStrips>
using Strips = std::array<std::array<Sums<64>, kStrips>, 2>;

template <size_t kStrips>
Strips<kStrips> no_sums() {
  Strips<kStrips> sums;
  LOOP_UNROLL_FULL
  for (size_t at = 0; at < 2 * kStrips; ++at) {
    sums[at / kStrips][at % kStrips] = aie::zeros<accfloat, 64>();
  }
  return sums;
}

// Adds 8 rows of 2 * kStrips blocks, `stride` apart, times 8 factors of each head. Half a block is
// a register, and so is what it is multiplied by.
template <size_t kStrips>
inline void add_rows(Strips<kStrips>& sums, const bfloat16* __restrict blocks, int32_t stride,
                     const bfloat16* __restrict first, const bfloat16* __restrict second) {
  const std::array<Halves<64>, 2> factors = {repeat_by_8(aie::load_v<8>(first)),
                                             repeat_by_8(aie::load_v<8>(second))};
  LOOP_UNROLL_FULL
  for (unsigned half = 0; half < 2; ++half) {
    LOOP_UNROLL_FULL
    for (size_t strip = 0; strip < kStrips; ++strip) {
      const bfloat16* at = blocks + 2 * static_cast<int32_t>(strip) * stride + 32 * half;
      const Halves<64> rows = aie::concat(aie::load_v<32>(at), aie::load_v<32>(at + stride));
      LOOP_UNROLL_FULL
      for (size_t head = 0; head < 2; ++head) {
        const Halves<32> factor = factors[head].template extract<32>(half);
        sums[head][strip] = aie::mac(sums[head][strip], rows, aie::concat(factor, factor));
      }
    }
  }
}

// Over the rows: of `v` the 8 columns of both blocks, then of `w`.
inline Floats<32> fold_strips(const Sums<64>& v, const Sums<64>& w) {
  const auto half = [](const Sums<64>& s, unsigned at) {
    return to_floats(aie::add(s.extract<16>(at), s.extract<16>(at + 1)));
  };
  return fold<8>(aie::concat(half(v, 0), half(v, 2)), aie::concat(half(w, 0), half(w, 2)), kAdd);
}

// Blocks of keys become blocks of 8 dimensions x 8 keys.
void transpose_blocks(bfloat16* __restrict k) {
  LOOP_TRIPS(kChunk / kBlock, 64, 64)
  for (int32_t at = 0; at < kChunk; at += kBlock) {
    aie::store_v(k + at, aie::transpose(aie::load_v<kBlock>(k + at), 8, 8));
  }
}

// Products of two heads with all keys, [key/16][head][16 keys], 16 * kStrips of them at a time.
template <size_t kStrips>
void multiply_keys(const bfloat16* __restrict q, const bfloat16* __restrict k,
                   float* __restrict products, int32_t head_dim, int32_t keys) {
  for (int32_t key = 0; key < keys; key += 16 * kStrips) {
    Strips<kStrips> sums = no_sums<kStrips>();
    LOOP_TRIPS(head_dim / 8, 8, 32)
    for (int32_t dim = 0; dim < head_dim; dim += 8) {
      add_rows<kStrips>(sums, k + key * head_dim + 8 * dim, 8 * head_dim, q + dim,
                        q + head_dim + dim);
    }
    LOOP_UNROLL_FULL
    for (size_t strip = 0; strip < kStrips; ++strip) {
      aie::store_v(products + 2 * key + 32 * strip, fold_strips(sums[0][strip], sums[1][strip]));
    }
  }
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

// Scores of the keys that do not count become kMaskedScore.
void mask_scores(float* __restrict t, int32_t vectors, int32_t keys, int32_t begin, int32_t end) {
  LOOP_TRIPS(vectors, 1, 16)
  for (int32_t i = 0; i < vectors; ++i) {
    const int32_t key = 16 * i & (keys - 1);
    aie::store_v(t + 32 * i, aie::select(constant<32>(kMaskedScore), load_floats<32>(t + 32 * i),
                                         keys_between(begin - key, end - key)));
  }
}

// One of 8 heads to a lane, four times: op over the 16 lanes that each pair's vector has of a head.
template <typename T, typename Op>
aie::vector<T, 32> fold_heads(const std::array<aie::vector<T, 32>, kPairs>& pairs, Op op) {
  const auto eighths =
      fold<4>(fold<8>(pairs[0], pairs[1], op), fold<8>(pairs[2], pairs[3], op), op);
  const auto quarters = fold<2>(eighths, eighths, op);
  return fold<1>(quarters, quarters, op);
}

// Where the `steps` vectors of each pair begin; pairs that do not exist repeat the last.
std::array<int32_t, kPairs> starts(int32_t pairs, int32_t steps) {
  std::array<int32_t, kPairs> at;
  LOOP_UNROLL_FULL
  for (int32_t pair = 0; pair < kPairs; ++pair) {
    at[pair] = 32 * steps * (pair < pairs ? pair : pairs - 1);
  }
  return at;
}

// The largest scores of 8 heads, rounded to bfloat16.
Halves<32> largest_of(const float* __restrict t, int32_t pairs, int32_t steps) {
  const auto at = starts(pairs, steps);
  std::array<Halves<32>, kPairs> largest;
  largest.fill(aie::broadcast<bfloat16, 32>(static_cast<bfloat16>(kNoMaximum)));
  LOOP_TRIPS(steps, 1, 4)
  for (int32_t step = 0; step < steps; ++step) {
    LOOP_UNROLL_FULL
    for (int32_t pair = 0; pair < kPairs; ++pair) {
      largest[pair] = aie::max(largest[pair], to_bf16(load_floats<32>(t + at[pair] + 32 * step)));
    }
  }
  return fold_heads<bfloat16>(largest, kMax);
}

// The sums of F of 8 heads.
Floats<32> sums_of(const bfloat16* __restrict f, int32_t pairs, int32_t steps) {
  const auto at = starts(pairs, steps);
  std::array<Sums<32>, kPairs> sums;
  sums.fill(aie::zeros<accfloat, 32>());
  LOOP_TRIPS(steps, 1, 4)
  for (int32_t step = 0; step < steps; ++step) {
    LOOP_UNROLL_FULL
    for (int32_t pair = 0; pair < kPairs; ++pair) {
      sums[pair] = aie::add(sums[pair], Sums<32>(aie::load_v<32>(f + at[pair] + 32 * step)));
    }
  }
  return fold_heads<float>(
      {to_floats(sums[0]), to_floats(sums[1]), to_floats(sums[2]), to_floats(sums[3])}, kAdd);
}

// F = 2^(t - m) of `vectors` vectors; 1 << `shift` vectors have an m. One loop of all of it would
// be too long to pipeline. The scales wait where F will be.
void probabilities_of(const float* __restrict t, const float* __restrict m, bfloat16* __restrict f,
                      int32_t vectors, int32_t shift) {
  alignas(64) bfloat16 limbs[4 * kPairs * kScores];
  LOOP_TRIPS(vectors, 1, 16)
  for (int32_t i = 0; i < vectors; ++i) {
    const auto begun = begin_exp2<Limbs<32>>(
        aie::sub(load_floats<32>(t + 32 * i), load_floats<32>(m + 32 * (i >> shift))), kQuartic);
    bfloat16* at = limbs + 128 * i;
    aie::store_v(at, begun.fraction.high);
    aie::store_v(at + 32, begun.fraction.low);
    aie::store_v(at + 64, begun.sum.high);
    aie::store_v(at + 96, begun.sum.low);
    aie::store_v(f + 32 * i, begun.scale);
  }
  LOOP_TRIPS(vectors, 1, 16)
  for (int32_t i = 0; i < vectors; ++i) {
    const bfloat16* at = limbs + 128 * i;
    const BegunPower<Limbs<32>, 32> begun = {
        Limbs<32>(aie::load_v<32>(at), aie::load_v<32>(at + 32)),
        Limbs<32>(aie::load_v<32>(at + 64), aie::load_v<32>(at + 96)), aie::load_v<32>(f + 32 * i)};
    aie::store_v(f + 32 * i, end_exp2(begun, kQuartic).to_bfloat16());
  }
}

// Y += F V of two heads, 32 dimensions at a time, for a chunk of kBlocks blocks of keys.
template <int32_t kBlocks>
void add_values(const bfloat16* __restrict f, const bfloat16* __restrict v, float* __restrict y,
                int32_t head_dim) {
  constexpr int32_t kTogether =
      kBlocks == 2 ? 64 : 32;  // dimensions of a trip of 8 products or more
  for (int32_t dim = 0; dim < head_dim; dim += kTogether) {
    LOOP_UNROLL_FULL
    for (int32_t part = 0; part < kTogether; part += 32) {
      Strips<2> sums = no_sums<2>();
      LOOP_UNROLL_FULL
      for (int32_t block = 0; block < kBlocks; ++block) {
        const bfloat16* at = f + 16 * (block & -2) + 8 * (block & 1);
        add_rows<2>(sums, v + 8 * (block * head_dim + dim + part), kBlock, at, at + 16);
      }
      LOOP_UNROLL_FULL
      for (int32_t head = 0; head < 2; ++head) {
        float* row = y + head * head_dim + dim + part;
        aie::store_v(row,
                     aie::add(load_floats<32>(row), fold_strips(sums[head][0], sums[head][1])));
      }
    }
  }
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
// a time: 32 lanes are 16 keys of one head and 16 of the next, and F is [group/2][keys/16][2][16].
// There are at most 32 heads, and group * head_dim is at most 2048; an odd group computes one extra
// head from leftover data. Transposes the blocks of k.
void flow_kv_scores(bfloat16* __restrict q, bfloat16* __restrict k, uint8_t* __restrict fcl,
                    float* __restrict state, int32_t group, int32_t head_dim, int32_t begin,
                    int32_t end, int32_t scale_bits, int32_t softcap_bits) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const ScoreMap to_log2(scale_bits, softcap_bits);
  const int32_t shift = log2_of(kChunk / 16) - log2_of(head_dim);
  const int32_t keys = 16 << shift, steps = 1 << shift;
  bfloat16* f = reinterpret_cast<bfloat16*>(fcl);

  alignas(64) float t[kPairs * kScores];
  alignas(64) float maxima[kHeads];
  alignas(64) float sums[kHeads];
  alignas(64) float repeated[kPairs * 32];  // maxima, 16 times each
  const Floats<32> m_left = aie::load_v<32>(state);
  const Floats<32> l_left = aie::load_v<32>(state + kHeads);
  aie::store_v(maxima, m_left);
  aie::store_v(sums, constant<32>(0.0f));
  transpose_blocks(k);

  for (int32_t first = 0; first < group; first += 2 * kPairs) {
    const int32_t left = (group - first + 1) / 2, pairs = left < kPairs ? left : kPairs;
    const int32_t vectors = pairs << shift;
    for (int32_t pair = 0; pair < pairs; ++pair) {
      const bfloat16* both = q + (first + 2 * pair) * head_dim;
      if (keys == 16) {
        multiply_keys<1>(both, k, t + 32 * pair, head_dim, keys);
      } else {
        multiply_keys<2>(both, k, t + 2 * keys * pair, head_dim, keys);
      }
    }
    to_log2.apply(t, 32 * vectors);
    if (begin > 0 || end < keys) mask_scores(t, vectors, keys, begin, end);

    const Halves<32> known = to_bf16(load_floats<8>(maxima + first).grow_replicate<32>());
    const Floats<32> m = nearest_integer(to_floats(aie::max(largest_of(t, pairs, steps), known)));
    aie::store_v(maxima + first, m.extract<8>(0));
    LOOP_UNROLL_FULL
    for (unsigned head = 0; head < 2 * kPairs; ++head) {
      aie::store_v(repeated + 16 * head, aie::broadcast<float, 16>(m.get(head)));
    }
    probabilities_of(t, repeated, f + first * keys, vectors, shift);
    aie::store_v(sums + first, sums_of(f + first * keys, pairs, steps).extract<8>(0));
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

// Y = C * Y + F V. The extra head of an odd group has a row of Y, for 2048 / head_dim is even.
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
  for (int32_t head = 0; head < group; head += 2) {
    const bfloat16* weights = f + head * keys;
    float* rows = y + head * head_dim;
    if (keys == 64) {
      add_values<8>(weights, v, rows, head_dim);
    } else if (keys == 32) {
      add_values<4>(weights, v, rows, head_dim);
    } else {
      add_values<2>(weights, v, rows, head_dim);
    }
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
