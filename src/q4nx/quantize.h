// Float weights -> Q4NX, Q2NX and Q8NX, when a model is compiled.
#pragma once

#include <cstdint>

#include "q4nx/layout.h"

namespace ort_aie::q4nx {

// Errors of a matrix, or the sum over its parts.
struct QuantizationError {
  double squared_error = 0;    // sum of (weight - stored weight)^2
  double squared_weights = 0;  // sum of weight^2
  double weighted_error = 0;   // sum of importance * (weight - stored weight)^2
  float largest_error = 0;
  bool representable = true;  // no weight is NaN, infinite, or above 2^60
};

// weight (row, col) = weights[row * row_stride + col * col_stride], n out-features by k in-features
// -> blocks (ceil(n/32), ceil(k/256), BlockBytes) with groups of 32 and minima, of 2, 4 or 8 bits.
// Writes nothing if the matrix is not representable.
//
// With 4 and 2 bits, each group of 32 is rounded to nearest in several ranges: its own, and ranges
// that lose a little at either end, because fewer steps lost to an outlier make all other steps
// finer. The best of them is fitted twice by least squares to the codes that it gives. The squared
// error of the stored weights, with scale and minimum in bfloat16, always decides. `importance` (k
// values, finite and not negative), unless it is null, says how much the error of each in-feature
// counts in it.
QuantizationError Quantize(const float* weights, int64_t row_stride, int64_t col_stride, int64_t n,
                           int64_t k, int64_t bits, const float* importance, uint8_t* blocks);

// Quantize for 8 bits; the weights must be representable. Each group of 32 is rounded to nearest
// with a zero point of 128 and a scale for its largest magnitude, or with a scale for the range of
// its weights (and 0) and the integer zero point that fits: whichever has less squared error, and
// the first if they are equal.
void QuantizeBytes(const float* weights, int64_t row_stride, int64_t col_stride, int64_t n,
                   int64_t k, const float* importance, uint8_t* blocks, QuantizationError& total);

}  // namespace ort_aie::q4nx
