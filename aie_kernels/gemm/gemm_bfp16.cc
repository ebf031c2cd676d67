// The matrix product of prefill with B in bfp16 (AIE2P): `gemm_tile` (gemm.cc) on weights that
// `q4nx_dequant_bfp16` has rounded.
//
// The sums have the bits of `gemm_tile` on the same weights in bfloat16: it transposes each tile of
// B, widens and rounds it in the same mode, once for each product, and multiplies in the same
// order.

#include "../common/loop_hints.h"

namespace {

using blocks = aie::block_vector<bfp16ebs8, 64>;
using sums = aie::accum<accfloat, 64>;
using stream = aie::block_vector_input_buffer_stream<bfp16ebs8, 64>;

constexpr int32_t tile = 64;
constexpr int32_t tile_bytes = blocks::memory_bytes();

}  // namespace

extern "C" {

// acc[part] += A B. Counts are in tiles of 8, those of m and n even, that of k a multiple of 4, so
// that streams begin at multiples of 64 bytes. a and acc are those of `gemm_tile`; b is
// [n_blocks / 2][k_blocks][2][8 n][9 bytes].
void gemm_tile_bfp16(const bfloat16* __restrict a, const uint8_t* __restrict b,
                     float* __restrict acc, int32_t m_blocks, int32_t k_blocks, int32_t n_blocks,
                     int32_t part) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  const bfloat16 one(1.0f);
  const int32_t a_step = m_blocks * tile;
  const int32_t c_step = n_blocks * tile;
  float* all = acc + part * m_blocks * c_step;
  for (int32_t m = 0; m < m_blocks; m += 2) {
    for (int32_t n = 0; n < n_blocks; n += 2) {
      float* c0 = all + m * c_step + n * tile;
      float* c1 = c0 + c_step;
      sums c00(aie::load_v<tile>(c0));
      sums c01(aie::load_v<tile>(c0 + tile));
      sums c10(aie::load_v<tile>(c1));
      sums c11(aie::load_v<tile>(c1 + tile));
      const bfloat16* a_next = a + m * tile;
      stream b_next(reinterpret_cast<const bfp16ebs8*>(b + n * k_blocks * tile_bytes));
      LOOP_TRIPS(k_blocks, 4, 32)
      for (int32_t k = 0; k < k_blocks; ++k) {
        // Two ways to widen: both by construction make Peano fail, with "Use not jointly dominated
        // by defs" (mlir-aie's mixed kernels).
        const sums wide0(aie::load_v<tile>(a_next));
        const sums wide1 = aie::mul(aie::load_v<tile>(a_next + tile), one);
        const blocks a0 = wide0.to_vector<bfp16ebs8>();
        const blocks a1 = wide1.to_vector<bfp16ebs8>();
        const blocks b0 = b_next.pop();
        const blocks b1 = b_next.pop();
        a_next += a_step;
        c00 = mac_8x8_8x8T(a0, b0, c00);
        c01 = mac_8x8_8x8T(a0, b1, c01);
        c10 = mac_8x8_8x8T(a1, b0, c10);
        c11 = mac_8x8_8x8T(a1, b1, c11);
      }
      aie::store_v(c0, c00.to_vector<float>());
      aie::store_v(c0 + tile, c01.to_vector<float>());
      aie::store_v(c1, c10.to_vector<float>());
      aie::store_v(c1 + tile, c11.to_vector<float>());
    }
  }
  event1();
}

}  // extern "C"
