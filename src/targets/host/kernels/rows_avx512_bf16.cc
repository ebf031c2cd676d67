// FusedDQP with AVX512_BF16.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/rows_avx512_bf16.inc"
}  // namespace

#define ORT_AIE_ONE_ROW(name, hint, blocks_ahead)                                       \
  void name(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums, \
            const BlockLayout& layout, float* y) {                                      \
    OneRow<hint, blocks_ahead>(blocks, k_blocks, a, sums, layout, y);                   \
  }
ORT_AIE_ONE_ROW(OneRowBf16Nta, _MM_HINT_NTA, 1)
ORT_AIE_ONE_ROW(OneRowBf16T0, _MM_HINT_T0, 1)
ORT_AIE_ONE_ROW(OneRowBf16T1, _MM_HINT_T1, 1)
ORT_AIE_ONE_ROW(OneRowBf16T2, _MM_HINT_T2, 1)
ORT_AIE_ONE_ROW(OneRowBf16TwoAhead, _MM_HINT_T1, 2)
ORT_AIE_ONE_ROW(OneRowBf16FourAhead, _MM_HINT_T1, 4)
#undef ORT_AIE_ONE_ROW

void RowsBf16Avx512Bf16(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                        int64_t rows, const BlockLayout& layout, float* y, int64_t ldy) {
  MultiplyRows<_MM_HINT_T1>(blocks, k_blocks, a, sums, rows, layout, y, ldy);
}

void RowsBf16Avx512Bf16Nta(const uint8_t* blocks, int64_t k_blocks, const float* a,
                           const float* sums, int64_t rows, const BlockLayout& layout, float* y,
                           int64_t ldy) {
  MultiplyRows<_MM_HINT_NTA>(blocks, k_blocks, a, sums, rows, layout, y, ldy);
}

}  // namespace ort_aie::host
