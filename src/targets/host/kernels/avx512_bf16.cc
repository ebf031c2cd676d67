// AVX512_BF16 on top of avx512.cc, for the GEMM and the attention of prompts, which are faster with
// it.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/avx512_bf16.inc"
}  // namespace

extern const Bf16Attention kAvx512Bf16Attention, kAmxAttention;
constinit const Bf16Attention kAvx512Bf16Attention = kWithDotProducts;
constinit const Bf16Attention kAmxAttention = [] {
  Bf16Attention attention = kWithDotProducts;
  attention.scores = ScoresAmx;
  attention.accumulate = AccumulateAmx;
  attention.row_block = kTileRowBlock;
  return attention;
}();

void DequantizeBlockAvx512Bf16(const uint8_t* block, const BlockLayout& layout, uint16_t* panel) {
  DequantizeBlock(block, layout, panel);
}

void GemmBf16Avx512Bf16(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                        int64_t k_pairs, float* y, int64_t ldy) {
  GemmBf16(a, lda, rows, panel, k_pairs, y, ldy);
}

}  // namespace ort_aie::host
