// Where the parts of a block of quantised weights are (q4nx/layout.h), as kernels read it.
#pragma once

#include <stdint.h>

namespace ort_aie::host {

struct BlockLayout {
  int64_t bytes;   // of a block
  int64_t minima;  // from the block's start; of 8 bits: zero points. Not read if symmetric
  int64_t codes;   // from the block's start
  int32_t shift;   // the 32 in-features from 32 * g on have scales and minima number g >> shift
  bool symmetric;  // each minimum is -2^(bits - 1) * scale, each zero point 128
};

}  // namespace ort_aie::host
