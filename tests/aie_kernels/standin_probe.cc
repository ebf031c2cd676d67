// Operations of the stand-in for the AIE API, one per entry point, for test_standin_*.py. Arrays
// have 64 lanes, unless their test says otherwise, and are aligned to 64 bytes.

#include <aie_api/aie.hpp>

namespace {

constexpr unsigned lanes = 64;
using floats = aie::vector<float, lanes>;
using halves = aie::vector<bfloat16, lanes>;
using sums = aie::accum<accfloat, lanes>;

floats load(const float* p) { return aie::load_v<lanes>(p); }
halves load(const bfloat16* p) { return aie::load_v<lanes>(p); }

}  // namespace

extern "C" {

void narrow(const float* x, bfloat16* y) { aie::store_v(y, sums(load(x)).to_vector<bfloat16>()); }
void widen(const bfloat16* x, float* y) { aie::store_v(y, sums(load(x)).to_vector<float>()); }

void bf16_mac(const float* c, const bfloat16* a, const bfloat16* b, float* y) {
  aie::store_v(y, aie::mac(sums(load(c)), load(a), load(b)).to_vector<float>());
}
void bf16_msc(const float* c, const bfloat16* a, const bfloat16* b, float* y) {
  aie::store_v(y, aie::msc(sums(load(c)), load(a), load(b)).to_vector<float>());
}
void bf16_negmul_lane(const bfloat16* a, const bfloat16* b, float* y) {
  const halves factors = load(b);
  aie::store_v(y, aie::negmul(load(a), factors[5]).to_vector<float>());
}
void bf16_add(const bfloat16* a, const bfloat16* b, bfloat16* y) {
  aie::store_v(y, aie::add(load(a), load(b)));
}
void float_mul(const float* a, const float* b, float* y) {
  aie::store_v(y, aie::mul(load(a), load(b)).to_vector<float>());
}
void float_mac(const float* c, const float* a, const float* b, float* y) {
  aie::store_v(y, aie::mac(sums(load(c)), load(a), load(b)).to_vector<float>());
}
void float_add(const float* a, const float* b, float* y) {
  aie::store_v(y, aie::add(load(a), load(b)));
}
void float_sub(const float* a, const float* b, float* y) {
  aie::store_v(y, aie::sub(sums(load(a)), load(b)).to_vector<float>());
}
void bf16_max(const bfloat16* a, const bfloat16* b, bfloat16* y) {
  aie::store_v(y, aie::max(load(a), load(b)));
}
void bf16_min(const bfloat16* a, const bfloat16* b, bfloat16* y) {
  aie::store_v(y, aie::min(load(a), load(b)));
}
// 1 or 0 in each lane.
void bf16_less(const bfloat16* a, const bfloat16* b, bfloat16* y) {
  aie::store_v(y, aie::select(bfloat16(0.0f), bfloat16(1.0f), aie::lt(load(a), load(b))));
}
void bf16_at_least(const bfloat16* a, const bfloat16* b, bfloat16* y) {
  aie::store_v(y, aie::select(bfloat16(0.0f), bfloat16(1.0f), aie::ge(load(a), load(b))));
}

float float_reduce_add(const float* x) { return aie::reduce_add(load(x)); }
void unpack_codes(const uint8_t* codes, uint8_t* y) {
  const auto nibbles = aie::load_v<lanes>(reinterpret_cast<const uint4*>(codes));
  aie::store_v(y, nibbles.unpack());
}
void integers_to_float(const int32_t* x, float* y) {
  aie::store_v(y, aie::to_float<float>(aie::load_v<lanes>(x)));
}

// y has 128 lanes.
void zip_by_4(const bfloat16* a, const bfloat16* b, bfloat16* y) {
  const auto [low, high] = aie::interleave_zip(load(a), load(b), 4);
  aie::store_v(y, aie::concat(low, high));
}
void unzip_by_4(const bfloat16* a, const bfloat16* b, bfloat16* y) {
  const auto [even, odd] = aie::interleave_unzip(load(a), load(b), 4);
  aie::store_v(y, aie::concat(even, odd));
}
void halves_by_8(const bfloat16* x, bfloat16* y) {
  aie::store_v(y, aie::concat(aie::filter_even(load(x), 8), aie::filter_odd(load(x), 8)));
}
void transpose_4x16(const bfloat16* x, bfloat16* y) {
  aie::store_v(y, aie::transpose(load(x), 4, 16));
}
void swap_parts(const bfloat16* x, bfloat16* y) {
  halves result;
  result.insert(3, load(x).extract<16>(0));
  result.insert(1, load(x).extract<16>(1)).insert(0, load(x).extract<16>(2));
  aie::store_v(y, result);
}
void select_scalar(const bfloat16* x, uint32_t bits, bfloat16* y) {
  const auto chosen = aie::mask<32>::from_uint32(bits);
  aie::store_v(y, aie::select(aie::load_v<32>(x), bfloat16(-1.0f), chosen));
}

void mmul_8x8x8(const bfloat16* a, const bfloat16* b, float* c) {
  aie::mmul<8, 8, 8, bfloat16, bfloat16> block(load(c));
  block.mac(load(a), load(b));
  aie::store_v(c, block.to_vector<float>());
}
#if __AIE_ARCH__ == 21
// 64 values as blocks, and the blocks' products: y has 128 bytes.
void bfp16_round(const float* x, uint8_t* y) {
  aie::block_vector_output_buffer_stream<bfp16ebs8, 64> out(reinterpret_cast<bfp16ebs8*>(y));
  out.push(sums(load(x)).to_vector<bfp16ebs8>());
}
// Two vectors of blocks (144 bytes) each.
void bfp16_mac(const uint8_t* a, const uint8_t* b, float* c) {
  aie::block_vector_input_buffer_stream<bfp16ebs8, 64> rows(reinterpret_cast<const bfp16ebs8*>(a));
  aie::block_vector_input_buffer_stream<bfp16ebs8, 64> columns(
      reinterpret_cast<const bfp16ebs8*>(b));
  sums sum(load(c));
  for (int i = 0; i < 2; ++i) {
    sum = mac_8x8_8x8T(rows.pop(), columns.pop(), sum);
  }
  aie::store_v(c, sum.to_vector<float>());
}
#endif

// The sum of an empty mmul, then the sum after a mac into it.
void mmul_empty(const bfloat16* a, const bfloat16* b, float* c) {
  aie::mmul<8, 8, 8, bfloat16, bfloat16> m;
  aie::store_v(c, m.to_vector<float>());
  m.mac(load(a), load(b));
  aie::store_v(c + lanes, m.to_vector<float>());
}

}  // extern "C"
