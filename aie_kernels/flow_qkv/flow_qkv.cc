// FlowQKV (paper 2, 3.1.3): attention of a chunk of queries, a chunk of keys and values at a time,
// on a pair of cores. The score core does the paper's steps 1 to 5, the value core steps 6 and 7;
// F, C and l pass between them through shared memory. FlowQKV-SWA and FlowQKV-NCA are the same
// kernels with a window or without causality.
//
// A query chunk is up to 128 rows of head dimension 64, 64 of 128, 32 of 256: chunk_rows queries of
// each head of a group, head-major. A chunk of keys or values is 2048 bfloat16, 4 KiB: 32, 16 or 8
// keys in blocks of 8 keys x 8 dimensions, [keys/8][head_dim/8][8][8]. S^T = K Q^T makes 8x8 tiles
// of keys x queries: K's blocks are used as they lie, and the softmax reduces over rows of a tile,
// not over lanes of a query.
//
// Numerics (AIE2P, with bfp16 for products of bfloat16): both operands of a
// matrix product are rounded to bfp16, 8 values sharing an exponent: each is off by up to 2/255
// of the largest of its block. Beside that the exponential may be coarse, but not as coarse as
// aie::exp2: the cubic in bfloat16 is off by at most 0.3 %, less than bfp16 rounds; the interpolant
// of the core is off by 6.2 %, which a softmax only partly cancels. The cubic costs about 35 issues
// per tile of 64, the interpolant would cost about 16. l sums F as the value core will see it,
// after its rounding to bfp16, by a product with ones: the weights of a row add up to one. C is a
// power of two and rescaling exact (softmax.h).
//
// Values of up to 8 keys share an exponent. Rows of V past the last key, up to a multiple of 8,
// must therefore be no larger than the others, best zero: F is 0 there, but a huge row would take
// the mantissas of its neighbours.

#define AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16 1

#include "../common/softmax.h"

namespace {

constexpr int32_t kChunk = 2048;
constexpr int32_t kRows = 128;
constexpr int32_t kScores = 32 * 32;
constexpr int32_t kOutputs = 8192;  // rows * head_dim, at most
constexpr int32_t kCorrectionByte = 8192;
constexpr int32_t kSumByte = 8704;

using Tile = aie::mmul<8, 8, 8, bfloat16, bfloat16>;

// The row of an 8x8 tile that a lane of its first half is in.
alignas(64) constexpr int32_t kRowOfLane[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                                2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};

// The keys that each query row attends to, first to last.
struct KeyRanges {
  int32_t* first;  // [kRows]
  int32_t* last;

  void set(int32_t rows, int32_t chunk_rows, int32_t first_query, int32_t total, int32_t window,
           int32_t causal) {
    int32_t query = first_query;
    for (int32_t row = 0; row < rows; ++row) {
      last[row] = causal && query < total ? query : total - 1;
      first[row] = window ? query - window + 1 : 0;
      query = query + 1 == first_query + chunk_rows ? first_query : query + 1;
    }
  }

  // Of the 4 keys from `key` on and the 8 queries from `row` on.
  aie::mask<32> attended(int32_t row, int32_t key) const {
    const auto keys = aie::add(aie::load_v<32>(kRowOfLane), key);
    const auto low = aie::load_v<8>(first + row).grow_replicate<32>();
    const auto high = aie::load_v<8>(last + row).grow_replicate<32>();
    return aie::ge(keys, low) & aie::le(keys, high);
  }
};

// Scores of 32 queries, in half tiles, from `row` and `first_key` on.
void mask_scores(float* scores, const KeyRanges& ranges, int32_t row, int32_t first_key,
                 int32_t keys) {
  LOOP_TRIPS(keys, 8, 32)
  for (int32_t half = 0; half < keys; ++half) {
    float* at = scores + 32 * half;
    const auto attended =
        ranges.attended(row + 8 * (half >> 1 & 3), first_key + 8 * (half >> 3) + 4 * (half & 1));
    aie::store_v(at, aie::select(constant<32>(kMaskedScore), load_floats<32>(at), attended));
  }
}

// F of a tile, keys x queries, whose 8 queries have the maxima m.
Halves<64> tile_of_weights(const float* scores, const Floats<8>& m) {
  return exp2_coarse(aie::sub(load_floats<64>(scores), m.grow_replicate<64>())).to_bfloat16();
}

// Explicitly zero: a default-constructed one would look up in every product whether it is the
// first.
std::array<Tile, 4> no_products() {
  const Tile zero(aie::zeros<accfloat, 64>());
  return {zero, zero, zero, zero};
}

// F times V for one block of 8 queries and all dimensions, four blocks of 8 at a time. The number
// of key blocks is a constant: as a loop of one to four trips it would not pipeline.
template <int32_t kKeyBlocks>
void add_values(const bfloat16* __restrict f, int32_t f_stride, const bfloat16* __restrict v,
                float* __restrict y, int32_t head_dim) {
  LOOP_TRIPS(head_dim / 32, 2, 8)
  for (int32_t at = 0; at < 8 * head_dim; at += 4 * Tile::size_C) {
    std::array<Tile, 4> tiles;
    LOOP_UNROLL_FULL
    for (int32_t i = 0; i < 4; ++i) {
      tiles[i] = Tile(Sums<64>(load_floats<64>(y + at + 64 * i)));
    }
    LOOP_UNROLL_FULL
    for (int32_t key_block = 0; key_block < kKeyBlocks; ++key_block) {
      const Halves<64> weights = aie::load_v<64>(f + key_block * f_stride);
      LOOP_UNROLL_FULL
      for (int32_t i = 0; i < 4; ++i) {
        tiles[i].mac(weights, aie::load_v<64>(v + 8 * key_block * head_dim + at + 64 * i));
      }
    }
    LOOP_UNROLL_FULL
    for (int32_t i = 0; i < 4; ++i) {
      aie::store_v(y + at + 64 * i, tiles[i].to_vector<float>());
    }
  }
}

}  // namespace

extern "C" {

// The key chunks that one sweep of chunks_per_sweep query chunks needs: plan[0] is their number,
// plan[1] the first key, plan[2] the first query position of this chunk. `keys` is a power of two.
void flow_qkv_schedule(int32_t* __restrict plan, int32_t sweep, int32_t chunk,
                       int32_t chunks_per_sweep, int32_t chunk_rows, int32_t past, int32_t total,
                       int32_t window, int32_t causal, int32_t keys) {
  const int32_t queries = chunks_per_sweep * chunk_rows;
  const int32_t first_query = past + sweep * queries;
  const int32_t end_query = first_query + queries < total ? first_query + queries : total;
  const int32_t end = causal ? end_query : total;
  const int32_t reach = first_query - window + 1;
  const int32_t first = window && reach > 0 ? reach & -keys : 0;
  plan[0] = end > first ? (end - first + keys - 1) >> log2_of(keys) : 0;
  plan[1] = first;
  plan[2] = first_query + chunk * chunk_rows;
}

// Piece `index` of q, row-major [rows][head_dim] in pieces of 512 elements, into tiles of [8
// dims][8 queries], [head_dim/8][rows/8]. `scratch` keeps 8 rows until they are together.
void flow_qkv_load_q(bfloat16* __restrict piece, bfloat16* __restrict scratch,
                     bfloat16* __restrict qt, int32_t index, int32_t head_dim, int32_t rows) {
  const int32_t pieces = head_dim >> 6;  // of 8 rows
  const int32_t place = index & (pieces - 1);
  copy_bf16(piece, scratch + place * 512, 512);
  if (place != pieces - 1) return;
  const int32_t row = (index - place) * (512 >> log2_of(head_dim));
  LOOP_TRIPS(head_dim / 8, 8, 32)
  for (int32_t dim = 0; dim < head_dim; dim += 8) {
    Halves<64> tile;
    LOOP_UNROLL_FULL
    for (int32_t i = 0; i < 8; ++i) {
      tile.insert(i, aie::load_v<8>(scratch + i * head_dim + dim));
    }
    aie::store_v(qt + dim * rows + 8 * row, aie::transpose(tile, 8, 8));
  }
}

// The state to no key: m[128], l[128].
void flow_qkv_begin(float* __restrict state) {
  fill(state, kRows, kNoMaximum);
  fill(state + kRows, kRows, 0.0f);
}

// F, C and l of key chunk `index` of the sweep. Always four blocks of 8 queries at a time: the last
// four may reach past the rows into leftover data, and only F is not written there. `scratch` holds
// scores and key ranges, 5 KB, which are too large for a stack.
void flow_qkv_scores(bfloat16* __restrict scratch, bfloat16* __restrict qt, bfloat16* __restrict k,
                     uint8_t* __restrict fcl, float* __restrict state, int32_t* __restrict plan,
                     int32_t head_dim, int32_t rows, int32_t chunk_rows, int32_t index,
                     int32_t total, int32_t window, int32_t causal, int32_t scale_bits,
                     int32_t softcap_bits) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const ScoreMap to_log2(scale_bits, softcap_bits);
  const int32_t keys = kChunk >> log2_of(head_dim);
  bfloat16* f = reinterpret_cast<bfloat16*>(fcl);
  const Halves<64> ones = aie::broadcast<bfloat16, 64>(static_cast<bfloat16>(1.0f));

  const int32_t first_query = plan[2];
  const int32_t first_key = plan[1] + index * keys;
  const int32_t last_key = first_key + keys - 1;
  const bool masked = last_key >= total || (causal && last_key > first_query) ||
                      (window && first_key <= first_query + chunk_rows - 1 - window);
  float* scores = reinterpret_cast<float*>(scratch);  // of 32 rows with up to 32 keys
  int32_t* key_ranges = reinterpret_cast<int32_t*>(scratch) + kScores;
  KeyRanges ranges{key_ranges, key_ranges + kRows};
  if (masked) {
    ranges.set((rows + 31) & -32, chunk_rows, first_query, total, window, causal);
  }

  alignas(64) bfloat16 beyond[64];  // F of rows past the last, where no branch breaks the loop
  for (int32_t row = 0; row < rows; row += 32) {
    LOOP_TRIPS(keys / 8, 1, 4)
    for (int32_t key = 0; key < keys; key += 8) {
      std::array<Tile, 4> tiles = no_products();
      LOOP_TRIPS(head_dim / 8, 8, 32)
      for (int32_t dim = 0; dim < head_dim; dim += 8) {
        const Halves<64> k_tile = aie::load_v<64>(k + key * head_dim + 8 * dim);
        LOOP_UNROLL_FULL
        for (int32_t i = 0; i < 4; ++i) {
          tiles[i].mac(k_tile, aie::load_v<64>(qt + dim * rows + 8 * row + 64 * i));
        }
      }
      LOOP_UNROLL_FULL
      for (int32_t i = 0; i < 4; ++i) {
        aie::store_v(scores + 32 * key + 64 * i, tiles[i].to_vector<float>());
      }
    }
    to_log2.apply(scores, 32 * keys);
    if (masked) {
      mask_scores(scores, ranges, row, first_key, keys);
    }
    std::array<Halves<64>, 4> largest;
    largest.fill(aie::broadcast<bfloat16, 64>(static_cast<bfloat16>(kNoMaximum)));
    LOOP_TRIPS(keys / 8, 1, 4)
    for (int32_t key = 0; key < keys; key += 8) {
      LOOP_UNROLL_FULL
      for (int32_t i = 0; i < 4; ++i) {
        largest[i] = aie::max(largest[i], to_bf16(load_floats<64>(scores + 32 * key + 64 * i)));
      }
    }

    const Floats<32> m_left = load_floats<32>(state + row);
    const Floats<32> m =
        nearest_integer(to_floats(aie::max(fold_rows<bfloat16>(largest, kMax), to_bf16(m_left))));
    const Halves<32> c = two_to(aie::sub(m_left, m));

    std::array<Tile, 4> sums = no_products();
    LOOP_TRIPS(keys / 8, 1, 4)
    for (int32_t key = 0; key < keys; key += 8) {
      LOOP_UNROLL_FULL
      for (int32_t i = 0; i < 4; ++i) {
        const Halves<64> weights =
            aie::transpose(tile_of_weights(scores + 32 * key + 64 * i, m.extract<8>(i)), 8, 8);
        sums[i].mac(weights, ones);
        aie::store_v(row + 8 * i < rows ? f + key * rows + 8 * row + 64 * i : beyond, weights);
      }
    }
    // Every column of a sum holds it.
    const Floats<32> sum =
        fold_columns<float>({sums[0].to_vector<float>(), sums[1].to_vector<float>(),
                             sums[2].to_vector<float>(), sums[3].to_vector<float>()},
                            kFirst);
    const Floats<32> l = aie::add(scale_exactly(load_floats<32>(state + kRows + row), c), sum);
    aie::store_v(state + row, m);
    aie::store_v(state + kRows + row, l);
    aie::store_v(reinterpret_cast<float*>(fcl + kCorrectionByte) + row, to_floats(c));
    aie::store_v(reinterpret_cast<float*>(fcl + kSumByte) + row, l);
  }
}

// y: Y [rows/8][head_dim/8][8][8] in 8192 floats, then l[128].
void flow_qkv_values_begin(float* __restrict y) { fill(y, kOutputs + kRows, 0.0f); }

// Y = C * Y + F V; l is the score core's.
void flow_qkv_values(uint8_t* __restrict fcl, bfloat16* __restrict v, float* __restrict y,
                     int32_t head_dim, int32_t rows) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const bfloat16* f = reinterpret_cast<const bfloat16*>(fcl);
  const float* c = reinterpret_cast<const float*>(fcl + kCorrectionByte);
  const float* l = reinterpret_cast<const float*>(fcl + kSumByte);

  for (int32_t row = 0; row < rows; row += 8) {
    const Floats<8> powers = load_floats<8>(c + row);
    float* block = y + row * head_dim;
    if (!aie::eq(powers.cast_to<int32>(), __builtin_bit_cast(int32_t, 1.0f)).full()) {
      const Halves<64> power = repeat_by_8(to_bf16(powers));
      LOOP_TRIPS(head_dim / 8, 8, 32)
      for (int32_t at = 0; at < 8 * head_dim; at += 64) {
        aie::store_v(block + at, scale_exactly(load_floats<64>(block + at), power));
      }
    }
    const bfloat16* weights = f + 8 * row;
    if (head_dim == 64) {
      add_values<4>(weights, 8 * rows, v, block, head_dim);
    } else if (head_dim == 128) {
      add_values<2>(weights, 8 * rows, v, block, head_dim);
    } else {
      add_values<1>(weights, 8 * rows, v, block, head_dim);
    }
  }
  for (int32_t row = 0; row < kRows; row += 32) {
    aie::store_v(y + kOutputs + row, load_floats<32>(l + row));
  }
}

// Elements index * 512 .. of O = Y / l, row-major; a row without any key is zero.
void flow_qkv_output(float* __restrict y, bfloat16* __restrict o, int32_t index, int32_t head_dim) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const int32_t rows = 512 >> log2_of(head_dim);
  for (int32_t i = 0; i < rows; ++i) {
    const int32_t row = index * rows + i;
    const float sum = y[kOutputs + row];
    const bool empty = __builtin_bit_cast(int32_t, sum) == 0;
    const ScalarLimbs inverse_sum(empty ? 0.0f : aie::inv(sum));
    const float* block = y + (row & -8) * head_dim + 8 * (row & 7);
    LOOP_TRIPS(head_dim / 32, 2, 8)
    for (int32_t dim = 0; dim < head_dim; dim += 32) {
      const float* at = block + 8 * dim;
      const Limbs<32> numerator(aie::concat(load_floats<8>(at), load_floats<8>(at + 64),
                                            load_floats<8>(at + 128), load_floats<8>(at + 192)));
      aie::store_v(o + i * head_dim + dim, to_bf16(product(numerator, inverse_sum)));
    }
  }
}

}  // extern "C"
