// Float weights -> Q4NX, when a model is compiled.
#pragma once

#include <cstdint>

#include "q4nx/layout.h"

namespace ort_aie::q4nx {

// Of a matrix, or of the parts of one added up.
struct QuantizationError {
  double squared_error = 0;    // sum of (weight - stored weight)^2
  double squared_weights = 0;  // sum of weight^2
  float largest_error = 0;
  bool representable = true;  // no weight is NaN, infinite, or above 2^60
};

// weight (row, col) = weights[row * row_stride + col * col_stride], n out-features by k in-features
// -> blocks (ceil(n/32), ceil(k/256), 5120). Of a matrix that is not representable, nothing is
// written.
//
// Each group of 32 is rounded to nearest in several ranges: its own, and those that lose a little
// of either end, as fewer steps lost to an outlier make all other steps finer. The best of them is
// fitted twice by least squares to the codes that it gives. What decides is always the squared
// error of the weights as they are stored, with scale and minimum in bfloat16.
QuantizationError Quantize(const float* weights, int64_t row_stride, int64_t col_stride, int64_t n,
                           int64_t k, uint8_t* blocks);

}  // namespace ort_aie::q4nx
