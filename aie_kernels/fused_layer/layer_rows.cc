// A decoder layer's vectors on their way between cores: rows that stay in L1 (`rows`, bfloat16),
// and objects of 256 or 512 of their elements. Nothing is computed here.

#include "../common/float_math.h"

namespace {

constexpr int32_t kObject = 256;
constexpr int32_t kColumn = 128;  // what a column of projections gives in a round
constexpr int32_t kColumns = 4;

}  // namespace

extern "C" {

// rows[256 * index ..] = piece.
void layer_load(bfloat16* __restrict piece, bfloat16* __restrict rows, int32_t index) {
  copy_bf16(piece, rows + kObject * index, kObject);
}

// to = rows[256 * index ..].
void layer_copy(bfloat16* __restrict rows, bfloat16* __restrict to, int32_t index) {
  copy_bf16(rows + kObject * index, to, kObject);
}

// to = piece.
void layer_pass(bfloat16* __restrict piece, bfloat16* __restrict to) {
  copy_bf16(piece, to, kObject);
}

// to = the first (0) or second (1) half of a round of projections.
void layer_half(bfloat16* __restrict y, bfloat16* __restrict to, int32_t half) {
  copy_bf16(y + kObject * half, to, kObject);
}

// rows[first ..] takes round `index` of a projection with n outputs. The columns of the last round
// move back to end with the matrix, so they may repeat elements.
void layer_place(bfloat16* __restrict y, bfloat16* __restrict rows, int32_t index, int32_t n,
                 int32_t first) {
  int32_t at = index * (kColumns * kColumn);
  for (int32_t column = 0; column < kColumns; ++column) {
    const int32_t last = n - kColumn;
    copy_bf16(y + column * kColumn, rows + first + (at < last ? at : last), kColumn);
    at += kColumn;
  }
}

}  // extern "C"
