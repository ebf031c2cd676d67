// What stands between the projections of a prompt, on the cores of GEMM and in what GEMM leaves
// them: 64 rows enter as its A, in objects of 64 columns that all four cores of a column see, and
// leave as its C. A core has 16 of the rows, so that all four have a share of every object, and
// keeps them in the accumulator, which is idle.
//
//   accumulator   bfloat16: the result, 16 rows x 512 columns. Seen as the 64 x 128 of GEMM's
//                 core, rows 16 g .. 16 g + 15 are columns 128 g .. 128 g + 127; in the order of
//                 C's parts, [4 parts][4 g][2 row blocks][4 column blocks][8 rows][8 columns]
//
// Rows and columns stay in blocks of 8 x 8 on the whole way. designs/row_operators.py says what
// comes in which order; `mode` is the operator, and 8 times the number of the core in its column.
//
// Numerics: those of the operators of a token, whose arithmetic this is (activations.h).

#include "activations.h"

namespace {

constexpr int32_t kBlock = 64;        // values of 8 rows x 8 columns
constexpr int32_t kColumnBlocks = 8;  // of an object
constexpr int32_t kRowBlocks = 2;     // of a core
constexpr int32_t kObjectStep = 512;  // values from one column block of an object to the next
constexpr int32_t kObjects = 8;       // of an operand of 512 columns
constexpr int32_t kPart = 2048;       // values of a part of C

enum Operator { kProduct = 0, kSiluGate = 1, kGeluGate = 2 };

Operator operator_of(int32_t mode) { return static_cast<Operator>(mode & 7); }

// The core's rows of an object.
const bfloat16* own_rows(const bfloat16* a, int32_t mode) {
  return a + (mode >> 3 & 3) * (kRowBlocks * kBlock);
}

// The result's block of row block 0 in the column block `column` of 64; row block 1 is kRowStep on.
constexpr int32_t kRowStep = 4 * kBlock;
bfloat16* result(float* acc, int32_t column) {
  const int32_t in_part = column % 16;
  return reinterpret_cast<bfloat16*>(acc) + in_part / 4 * kPart +
         column / 16 * (kRowBlocks * kRowStep) + in_part % 4 * kBlock;
}

// apply(block of the object, block of the result) for the core's rows of object `index` of 512
// columns.
template <typename Apply>
void each_block(const bfloat16* __restrict rows, float* __restrict acc, int32_t index,
                Apply apply) {
  LOOP_TRIPS(kColumnBlocks, 8, 8)
  for (int32_t column = 0; column < kColumnBlocks; ++column) {
    bfloat16* to = result(acc, index * kColumnBlocks + column);
    for (int32_t row = 0; row < kRowBlocks; ++row) {
      apply(rows + row * kBlock, to + row * kRowStep);
    }
    rows += kObjectStep;
  }
}

void keep(const bfloat16* from, bfloat16* to) { aie::store_v(to, aie::load_v<kBlock>(from)); }

// The gate, which is there, becomes the gated `rows`.
template <typename Argument>
void gate(const bfloat16* __restrict rows, float* __restrict acc, int32_t index,
          Argument argument) {
  each_block(rows, acc, index, [argument](const bfloat16* up, bfloat16* y) {
    for (int32_t i = 0; i < kBlock; i += 32) {
      aie::store_v(y + i, gated(aie::load_v<32>(y + i), aie::load_v<32>(up + i), argument));
    }
  });
}

}  // namespace

extern "C" {

// What the loops of the worker count: blocks of products (0 unless mode is), then for the row
// operators results of 512 columns, and objects of each.
void rows_begin(int32_t* __restrict counts, int32_t count, int32_t mode) {
  const bool product = operator_of(mode) == kProduct;
  counts[0] = product ? count : 0;
  counts[1] = product ? 0 : count;
  counts[2] = 2 * kObjects;
}

// An object of an operand: `index` counts those of a result.
void rows_take(bfloat16* __restrict a, float* __restrict acc, int32_t mode, int32_t index) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const bfloat16* rows = own_rows(a, mode);
  if (index < kObjects) {
    each_block(rows, acc, index, keep);
  } else if (operator_of(mode) == kSiluGate) {
    gate(rows, acc, index - kObjects, silu_argument);
  } else {
    gate(rows, acc, index - kObjects, gelu_argument);
  }
}

// A part of the result.
void rows_store(float* __restrict acc, bfloat16* __restrict c, int32_t part) {
  const bfloat16* from = reinterpret_cast<const bfloat16*>(acc) + part * kPart;
  LOOP_TRIPS(kPart / kBlock, 32, 32)
  for (int32_t i = 0; i < kPart; i += kBlock) {
    aie::store_v(c + i, aie::load_v<kBlock>(from + i));
  }
}

}  // extern "C"
