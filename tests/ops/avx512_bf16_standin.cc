// The kernels of AVX512_BF16 on any CPU with AVX2: the same source with stand-ins for the
// instructions.
#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {
#include "avx512_bf16_standin.h"

namespace many {
#include "targets/host/kernels/avx512_bf16.inc"
}
namespace few {
#include "targets/host/kernels/rows_avx512_bf16.inc"
}
}  // namespace

void OneRowBf16Standin(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                       const BlockLayout& layout, float* y) {
  few::OneRow<_MM_HINT_T1, 1>(blocks, k_blocks, a, sums, layout, y);
}

void RowsBf16Standin(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                     int64_t rows, const BlockLayout& layout, float* y, int64_t ldy) {
  few::MultiplyRows<_MM_HINT_T1>(blocks, k_blocks, a, sums, rows, layout, y, ldy);
}

void DequantizeBlockBf16Standin(const uint8_t* block, const BlockLayout& layout, uint16_t* panel) {
  many::DequantizeBlock(block, layout, panel);
}

void GemmBf16Standin(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                     int64_t k_pairs, float* y, int64_t ldy) {
  many::GemmBf16(a, lda, rows, panel, k_pairs, y, ldy);
}

extern const Bf16Attention kAvx512Bf16StandinAttention;
constinit const Bf16Attention kAvx512Bf16StandinAttention = many::kWithDotProducts;

}  // namespace ort_aie::host
