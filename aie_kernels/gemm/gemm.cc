// The matrix product of prefill (paper 2, 3.1.2): tiles of 8 x 8 x 8, blocked 2 x 2 in registers,
// so that four independent accumulators hide the latency and every operand serves twice. fp32 sums
// stay in L1 for all of K.
//
// AIE2P has no bfloat16 matrix unit. There operands are rounded to bfp16: blocks of 8 along k that
// share an exponent, with 8-bit mantissas.

#define AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16 1  // read by AIE2P's part of the API alone

#include "../common/loop_hints.h"

namespace {

using mmul = aie::mmul<8, 8, 8, bfloat16, bfloat16>;

constexpr int32_t tile = mmul::size_C;
constexpr int32_t lanes = 32;
constexpr int32_t part_rows = 8, part_columns = 4;  // tiles of a part of C

inline const float* strip(const float* acc, int32_t index) {
  return acc + index / part_columns * (part_rows * part_columns * tile) +
         index % part_columns * tile;
}

}  // namespace

extern "C" {

void gemm_zero(float* __restrict acc, int32_t count) {
  event0();
  LOOP_TRIPS(count / lanes, 2, 256)
  for (int32_t i = 0; i < count; i += lanes) {
    aie::store_v(acc + i, aie::zeros<float, lanes>());
  }
  event1();
}

// acc[part] += A B. Counts are in tiles of 8, those of m and n even. a is [k_blocks][m_blocks][8
// m][8 k], b is [k_blocks][n_blocks][8 k][8 n], acc is [part][m_blocks][n_blocks][8 m][8 n].
void gemm_tile(const bfloat16* __restrict a, const bfloat16* __restrict b, float* __restrict acc,
               int32_t m_blocks, int32_t k_blocks, int32_t n_blocks, int32_t part) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  const int32_t a_step = m_blocks * tile;
  const int32_t b_step = n_blocks * tile;
  float* sums = acc + part * m_blocks * b_step;
  for (int32_t m = 0; m < m_blocks; m += 2) {
    for (int32_t n = 0; n < n_blocks; n += 2) {
      float* c0 = sums + m * b_step + n * tile;
      float* c1 = c0 + b_step;
      mmul c00(aie::load_v<tile>(c0));
      mmul c01(aie::load_v<tile>(c0 + tile));
      mmul c10(aie::load_v<tile>(c1));
      mmul c11(aie::load_v<tile>(c1 + tile));
      const bfloat16* a_next = a + m * tile;
      const bfloat16* b_next = b + n * tile;
      LOOP_TRIPS(k_blocks, 2, 32)
      for (int32_t k = 0; k < k_blocks; ++k) {
        const aie::vector<bfloat16, mmul::size_A> a0 = aie::load_v<mmul::size_A>(a_next);
        const aie::vector<bfloat16, mmul::size_A> a1 = aie::load_v<mmul::size_A>(a_next + tile);
        const aie::vector<bfloat16, mmul::size_B> b0 = aie::load_v<mmul::size_B>(b_next);
        const aie::vector<bfloat16, mmul::size_B> b1 = aie::load_v<mmul::size_B>(b_next + tile);
        a_next += a_step;
        b_next += b_step;
        c00.mac(a0, b0);
        c01.mac(a0, b1);
        c10.mac(a1, b0);
        c11.mac(a1, b1);
      }
      aie::store_v(c0, c00.to_vector<float>());
      aie::store_v(c0 + tile, c01.to_vector<float>());
      aie::store_v(c1, c10.to_vector<float>());
      aie::store_v(c1 + tile, c11.to_vector<float>());
    }
  }
  event1();
}

// c[64 m][8 n] = a strip of acc, [part][8 m_blocks][4 n_blocks][8 m][8 n]: four for each part.
void gemm_store_bf16(const float* __restrict acc, bfloat16* __restrict c, int32_t index) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  const float* sums = strip(acc, index);
  LOOP_TRIPS(part_rows, 8, 8)
  for (int32_t m = 0; m < part_rows; ++m) {
    LOOP_UNROLL_FULL
    for (int32_t i = 0; i < tile; i += lanes) {
      const aie::accum<accfloat, lanes> values(
          aie::load_v<lanes>(sums + m * part_columns * tile + i));
      aie::store_v(c + m * tile + i, values.to_vector<bfloat16>());
    }
  }
  event1();
}

}  // extern "C"
