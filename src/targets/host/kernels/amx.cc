// Intel's AMX on top of avx512_bf16.cc.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/amx.inc"
}  // namespace

void GemmBf16Amx(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                 int64_t k_pairs, float* y, int64_t ldy) {
  TileGemmBf16(a, lda, rows, panel, k_pairs, y, ldy);
}

void ScoresAmx(const uint16_t* q, int64_t rows, int64_t dim, const uint16_t* panels, int64_t keys,
               float scale, float* s) {
  TileScores(q, rows, dim, panels, keys, scale, s);
}

void AccumulateAmx(const uint16_t* f, int64_t rows, const uint16_t* pairs, int64_t keys,
                   int64_t dim, const float* correction, float* y) {
  TileAccumulate(f, rows, pairs, keys, dim, correction, y);
}

}  // namespace ort_aie::host
