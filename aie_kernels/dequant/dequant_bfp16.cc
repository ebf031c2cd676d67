// The dequantisation engine for a GEMM that reads blocks of bfp16 (AIE2P): a Q4NX block to weights
// in the order in which `gemm_tile_bfp16` takes its B.
//
// tile[k / 64][n / 16][k / 8 % 8][n / 8 % 2][n % 8], 9 bytes each: eight in-features k share an
// exponent. A weight is rounded to bfloat16 (q4nx_weights.h), and eight of those to bfp16, to
// nearest even: as a product of bfloat16 rounds its operands on this architecture.

#include "../common/loop_hints.h"
#include "q4nx_weights.h"

namespace {

using blocks = aie::block_vector<bfp16ebs8, q4nx::tile_size>;
using stream = aie::block_vector_output_buffer_stream<bfp16ebs8, q4nx::tile_size>;

constexpr unsigned step_groups = 2;
// Bytes of 64 in-features of 16 out-features: streams begin at multiples of 64 bytes.
constexpr unsigned run_bytes = 16 * blocks::memory_bytes();

inline blocks rounded(const aie::vector<bfloat16, q4nx::tile_size>& tile) {
  const aie::accum<accfloat, q4nx::tile_size> rows(aie::transpose(tile, 8, 8));
  return rows.to_vector<bfp16ebs8>();
}

}  // namespace

extern "C" {

// `scales` and `minima` are the form.
void q4nx_dequant_bfp16(const uint8_t* __restrict block, uint8_t* __restrict tile, int32_t scales,
                        int32_t minima) {
  event0();
  aie::set_rounding(aie::rounding_mode::conv_even);
  const q4nx::form form(scales, minima);
  LOOP_TRIPS(q4nx::groups / step_groups, 4, 4)
  for (unsigned step = 0; step < q4nx::groups / step_groups; ++step) {
    for (unsigned half = 0; half < 2; ++half) {
      stream out(reinterpret_cast<bfp16ebs8*>(tile + (2 * step + half) * run_bytes));
      for (unsigned g = 0; g < step_groups; ++g) {
        const q4nx::half_group group(block, form, step * step_groups + g, half);
        LOOP_TRIPS(q4nx::group / q4nx::sub_columns, 4, 4)
        for (unsigned i = 0; i < q4nx::group / q4nx::sub_columns; ++i) {
          const q4nx::tile_pair weights = group.weights(i);
          out.push(rounded(weights.first));
          out.push(rounded(weights.second));
        }
      }
    }
  }
  event1();
}

}  // extern "C"
