// The operators between the projections of a prompt, on the cores of GEMM and in the memory that
// GEMM leaves free: 64 rows enter as its A, in objects of 64 columns that all four cores of a
// column see, and leave as its C. Each core has 16 of the rows, so that all four share every
// object. It keeps them in the accumulator, which is idle.
//
//   accumulator   bfloat16: the result, 16 rows x 512 columns. Seen as the 64 x 128 of GEMM's
//                 core, rows 16 g .. 16 g + 15 are columns 128 g .. 128 g + 127; in the order of
//                 C's parts, [4 parts][4 g][2 row blocks][4 column blocks][8 rows][8 columns]
//
//                 then the weights of a norm, up to 7,168
//                 then float [2 row blocks][8 rows][8]: the sums of a row's squares
//                 then [2 row blocks][2 limbs][8 rows][8 times]: what a row is multiplied with
//
// Rows and columns stay in blocks of 8 x 8 throughout. row_operators.py gives the order of
// the objects, and row_kernels.py the fields of `mode`.
//
// Numerics: those of the operators of a token, whose arithmetic this is (activations.h, norm.h,
// rotation.h).
// The squares of a row are summed in eight sums of fp32.

#include "../common/activations.h"
#include "../common/norm.h"
#include "../common/rotation.h"

namespace {

constexpr int32_t kBlock = 64;        // values of 8 rows x 8 columns
constexpr int32_t kColumnBlocks = 8;  // of an object
constexpr int32_t kRowBlocks = 2;     // of a core
constexpr int32_t kObjectStep = 512;  // values from one column block of an object to the next
constexpr int32_t kObjects = 8;       // of an operand of 512 columns
constexpr int32_t kPart = 2048;       // values of a part of C
constexpr int32_t kStrip = 512;       // values that leave at once: 8 of the 32 columns of a part

enum Operator { kProduct = 0, kSiluGate = 1, kGeluGate = 2, kSum = 3, kNorm = 4, kRotate = 5 };

// In the accumulator, in bytes.
constexpr int32_t kWeights = 16384;
constexpr int32_t kSquares = 30720;
constexpr int32_t kFactors = 31232;

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

// For a norm: the columns of a row, in slabs of 256, and the number of columns in the mean.
int32_t slabs_of(int32_t mode) { return mode >> 5 & 31; }
int32_t mean_of(int32_t mode) { return mode >> 10 & 0x1FFF; }

// For a rotation: objects of a head, pairs in blocks of 8, whether pairs are neighbours, whether
// heads are normalised first, and whether a row has 128 columns (then there are four copies of it).
int32_t head_objects_of(int32_t mode) { return 1 << (mode >> 5 & 3); }
int32_t pair_blocks_of(int32_t mode) { return (mode >> 7 & 15) * 2; }
bool interleaved(int32_t mode) { return mode >> 11 & 1; }
bool normalises(int32_t mode) { return mode >> 12 & 1; }
bool narrow(int32_t mode) { return mode >> 13 & 1; }
bool in_blocks(int32_t mode) { return mode >> 14 & 1; }

template <typename T>
T* at(float* acc, int32_t bytes) {
  return reinterpret_cast<T*>(reinterpret_cast<char*>(acc) + bytes);
}

void keep(const bfloat16* from, bfloat16* to) { aie::store_v(to, aie::load_v<kBlock>(from)); }

// Replaces the stored gate by the gated `rows`.
template <typename Argument>
void gate(const bfloat16* __restrict rows, float* __restrict acc, int32_t index,
          Argument argument) {
  each_block(rows, acc, index, [argument](const bfloat16* up, bfloat16* y) {
    for (int32_t i = 0; i < kBlock; i += 32) {
      aie::store_v(y + i, gated(aie::load_v<32>(y + i), aie::load_v<32>(up + i), argument));
    }
  });
}

void add(const bfloat16* __restrict rows, float* __restrict acc, int32_t index) {
  each_block(rows, acc, index, [](const bfloat16* x, bfloat16* y) {
    for (int32_t i = 0; i < kBlock; i += 32) {
      aie::store_v(y + i, added<32>(aie::load_v<32>(y + i), aie::load_v<32>(x + i)));
    }
  });
}

// Object `index` of the weights: its row i has 64 of the columns of slab i of 256.
void keep_weights(const bfloat16* __restrict a, float* __restrict acc, int32_t slabs,
                  int32_t index) {
  for (int32_t slab = 0; slab < slabs; ++slab) {
    bfloat16* weights = at<bfloat16>(acc, kWeights) + slab * 256 + index * 64;
    LOOP_TRIPS(kColumnBlocks, 8, 8)
    for (int32_t column = 0; column < kColumnBlocks; ++column) {
      aie::store_v(weights + 8 * column, aie::load_v<8>(a + column * kObjectStep + 8 * slab));
    }
  }
}

// The squares of the core's rows of an object, to those before it unless it is the first.
void add_row_squares(const bfloat16* __restrict rows, float* __restrict acc, bool first) {
  for (int32_t block = 0; block < kRowBlocks; ++block) {
    float* sums = at<float>(acc, kSquares) + block * kBlock;
    Sums<kBlock> squares =
        first ? aie::zeros<accfloat, kBlock>() : Sums<kBlock>(aie::load_v<kBlock>(sums));
    const bfloat16* x = rows + block * kBlock;
    LOOP_TRIPS(kColumnBlocks, 8, 8)
    for (int32_t column = 0; column < kColumnBlocks; ++column) {
      squares = aie::mac_square(squares, aie::load_v<kBlock>(x));
      x += kObjectStep;
    }
    aie::store_v(sums, squares.to_vector<float>());
  }
}

// The factor of each row, 1 / sqrt(mean + eps), eight times beside each other.
void find_factors(float* __restrict acc, int32_t n, int32_t eps_bits) {
  for (int32_t block = 0; block < kRowBlocks; ++block) {
    const float* sums = at<float>(acc, kSquares) + block * kBlock;
    bfloat16* high = at<bfloat16>(acc, kFactors) + block * (2 * kBlock);
    for (int32_t row = 0; row < 8; ++row) {
      const Floats<16> squares =
          aie::concat(aie::load_v<8>(sums + 8 * row), aie::zeros<float, 8>());
      const ScalarLimbs factor(inverse_root_mean(squares, n, eps_bits));
      aie::store_v(high + 8 * row, aie::broadcast<bfloat16, 8>(factor.high));
      aie::store_v(high + kBlock + 8 * row, aie::broadcast<bfloat16, 8>(factor.low));
    }
  }
}

// Object `index` of the result, whose first column has the weight `weights`, normalised.
void normalise_rows(float* __restrict acc, int32_t index, const bfloat16* __restrict weights) {
  const bfloat16* factors = at<bfloat16>(acc, kFactors);
  for (int32_t column = 0; column < kColumnBlocks; ++column) {
    const Halves<32> weight = aie::load_v<8>(weights + 8 * column).grow_replicate<32>();
    for (int32_t block = 0; block < kRowBlocks; ++block) {
      bfloat16* x = result(acc, index * kColumnBlocks + column) + block * kRowStep;
      const bfloat16* high = factors + block * (2 * kBlock);
      for (int32_t i = 0; i < kBlock; i += 32) {
        const Limbs<32> factor(aie::load_v<32>(high + i), aie::load_v<32>(high + kBlock + i));
        aie::store_v(x + i, normalised<32>(aie::load_v<32>(x + i), factor, weight));
      }
    }
  }
}

// An object of heads has arrived: heads are normalised after the last object of a head.
void normalise_heads(const bfloat16* __restrict rows, float* __restrict acc, int32_t mode,
                     int32_t eps_bits, int32_t index) {
  const int32_t objects = head_objects_of(mode), place = index % objects;
  add_row_squares(rows, acc, place == 0);
  if (place < objects - 1) return;
  find_factors(acc, 64 * objects, eps_bits);
  for (int32_t i = 0; i < objects; ++i) {
    // Weights are those of 256 columns, heads beside each other.
    normalise_rows(acc, index - place + i,
                   at<bfloat16>(acc, kWeights) + (index - place + i) % 4 * 64);
  }
}

// The pairs of a column block in object `index` of the table, 32 cosines and 32 sines, of a head
// that begins with `head`; all rows of the core.
void rotate_halves(const bfloat16* __restrict cosines, float* __restrict acc, int32_t head,
                   int32_t pair, int32_t pairs) {
  for (int32_t block = 0; block < kRowBlocks; ++block) {
    bfloat16* a = result(acc, head + pair) + block * kRowStep;
    bfloat16* b = result(acc, head + pair + pairs) + block * kRowStep;
    const bfloat16* cosine = cosines + block * kBlock;
    for (int32_t i = 0; i < kBlock; i += 32) {
      const Pairs<32> turned =
          rotated<32>({aie::load_v<32>(a + i), aie::load_v<32>(b + i)}, aie::load_v<32>(cosine + i),
                      aie::load_v<32>(cosine + 4 * kObjectStep + i));
      aie::store_v(a + i, turned.first);
      aie::store_v(b + i, turned.second);
    }
  }
}

// The same where neighbours are pairs: two column blocks have the eight of a row.
void rotate_neighbours(const bfloat16* __restrict cosines, float* __restrict acc, int32_t head,
                       int32_t pair) {
  for (int32_t block = 0; block < kRowBlocks; ++block) {
    const Halves<64> cosine = aie::load_v<64>(cosines + block * kBlock);
    const Halves<64> sine = aie::load_v<64>(cosines + 4 * kObjectStep + block * kBlock);
    bfloat16* low = result(acc, head + 2 * pair) + block * kRowStep;
    bfloat16* high = result(acc, head + 2 * pair + 1) + block * kRowStep;
    aie::store_v(
        low, side_by_side(rotated(neighbours<64>(aie::load_v<64>(low)), aie::filter_even(cosine, 4),
                                  aie::filter_even(sine, 4))));
    aie::store_v(high, side_by_side(rotated(neighbours<64>(aie::load_v<64>(high)),
                                            aie::filter_odd(cosine, 4), aie::filter_odd(sine, 4))));
  }
}

// Object `index` of the table: pairs 32 index .. 32 index + 31 of every head of the result.
void rotate(const bfloat16* __restrict rows, float* __restrict acc, int32_t mode, int32_t index) {
  const int32_t pairs = pair_blocks_of(mode);
  const int32_t here = pairs - 4 * index < 4 ? pairs - 4 * index : 4;
  const int32_t step = kColumnBlocks * head_objects_of(mode);
  for (int32_t head = 0; head < kObjects * kColumnBlocks; head += step) {
    for (int32_t i = 0; i < here; ++i) {
      const bfloat16* cosines = rows + i * kObjectStep;
      if (interleaved(mode)) {
        rotate_neighbours(cosines, acc, head, 4 * index + i);
      } else {
        rotate_halves(cosines, acc, head, 4 * index + i, pairs);
      }
    }
  }
}

// The first two objects of the result become all eight.
void repeat_columns(float* __restrict acc) {
  for (int32_t column = 2 * kColumnBlocks; column < kObjects * kColumnBlocks; ++column) {
    for (int32_t block = 0; block < kRowBlocks; ++block) {
      keep(result(acc, column % (2 * kColumnBlocks)) + block * kRowStep,
           result(acc, column) + block * kRowStep);
    }
  }
}

// The column of a row at which object `index` of result `tile` begins: the last result is moved
// back, and a row of 256 is both halves of it.
int32_t column_of(int32_t slabs, int32_t tile, int32_t index) {
  if (slabs == 1) return index % 4 * 64;
  const int32_t last = (slabs - 2) * 256;
  return (tile * 512 < last ? tile * 512 : last) + index * 64;
}

}  // namespace

extern "C" {

// The trip counts of the worker's loops: blocks of products (0 unless mode is 0); then for the row
// operators turns, objects before the first turn, and for each turn the objects to read first,
// results of 512 columns, and objects of each result.
void rows_begin(int32_t* __restrict counts, int32_t count, int32_t mode) {
  const Operator what = operator_of(mode);
  const int32_t slabs = slabs_of(mode);
  counts[0] = what == kProduct ? count : 0;
  counts[1] = what == kProduct ? 0 : count;
  counts[2] = what == kNorm || (what == kRotate && normalises(mode)) ? 4 : 0;
  counts[3] = what == kNorm ? 4 * slabs : 0;
  counts[4] = what == kNorm ? (slabs + 1) / 2 : 1;
  counts[5] = what == kNorm                                  ? kObjects
              : what == kRotate && pair_blocks_of(mode) == 0 ? kObjects
              : what == kRotate                              ? kObjects + 4
                                                             : 2 * kObjects;
}

// A norm's first passes: object `index` of the weights (pass 0), or of the rows (pass 1). The rows'
// factors are complete after the last object.
void rows_prepare(bfloat16* __restrict a, float* __restrict acc, int32_t mode, int32_t eps_bits,
                  int32_t pass, int32_t index) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  if (pass == 0) {
    keep_weights(a, acc, operator_of(mode) == kNorm ? slabs_of(mode) : 1, index);
    return;
  }
  add_row_squares(own_rows(a, mode), acc, index == 0);
  if (index == 4 * slabs_of(mode) - 1) find_factors(acc, mean_of(mode), eps_bits);
}

// An object of an operand: `index` counts those of a result, `tile` the results of a row.
void rows_take(bfloat16* __restrict a, float* __restrict acc, int32_t mode, int32_t eps_bits,
               int32_t tile, int32_t index) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  const Operator what = operator_of(mode);
  const bfloat16* rows = own_rows(a, mode);
  if (index < kObjects) {
    if (what == kRotate && narrow(mode) && index > 1) return;
    each_block(rows, acc, index, keep);
    if (what == kNorm) {
      const int32_t column = column_of(slabs_of(mode), tile, index);
      normalise_rows(acc, index, at<bfloat16>(acc, kWeights) + column);
    } else if (what == kRotate && normalises(mode)) {
      normalise_heads(rows, acc, mode, eps_bits, index);
    }
    if (what == kRotate && narrow(mode) && index == 1) repeat_columns(acc);
  } else if (what == kRotate) {
    rotate(rows, acc, mode, index - kObjects);
  } else if (what == kSum) {
    add(rows, acc, index - kObjects);
  } else if (what == kSiluGate) {
    gate(rows, acc, index - kObjects, silu_argument);
  } else {
    gate(rows, acc, index - kObjects, gelu_argument);
  }
}

// A strip of the result: 8 of C's 128 columns, for all of its 64 rows, which are 16 rows of each of
// four times 128 columns. In the order of a cache, 16 rows of 128 columns are two groups of 8 keys,
// [16 column blocks][8 keys][8 dimensions] each, one behind the other.
void rows_store(float* __restrict acc, bfloat16* __restrict c, int32_t mode, int32_t index) {
  constexpr int32_t kBlocks = kStrip / kBlock;
  const int32_t part = index >> 2, column = index & 3;
  if (operator_of(mode) == kRotate && in_blocks(mode)) {
    for (int32_t block = 0; block < kBlocks; ++block) {
      // Row i of a block of C is 8 dimensions of a key: 16 of those are a row of C.
      const int32_t group = block / 2, keys = block % 2;
      LOOP_TRIPS(8, 8, 8)
      for (int32_t i = 0; i < 8; ++i) {
        const bfloat16* from = result(acc, 16 * group + 2 * i + index / 8) + keys * kRowStep;
        aie::store_v(c + 8 * i, aie::load_v<8>(from + index % 8 * 8));
      }
      c += kBlock;
    }
    return;
  }
  const bfloat16* from = reinterpret_cast<const bfloat16*>(acc) + part * kPart + column * kBlock;
  LOOP_TRIPS(kBlocks, 8, 8)
  for (int32_t i = 0; i < kBlocks; ++i) {
    aie::store_v(c + i * kBlock, aie::load_v<kBlock>(from + i * kRowStep));
  }
}

}  // extern "C"
