#pragma once

#include <stdint.h>

namespace bare {

constexpr int64_t kStride = 128;  // bytes between rows of a product's tiles

struct Compared {
  // c += a . b, so many times, with tiles 0, 1 and 2 of a configuration.
  void (*product)(const uint8_t* config, const void* a, const void* b, void* c, int times);
  void (*gemm)(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel, int64_t k_pairs,
               float* y, int64_t ldy);
  void (*scores)(const uint16_t* q, int64_t rows, int64_t dim, const uint16_t* panels, int64_t keys,
                 float scale, float* s);
  void (*accumulate)(const uint16_t* f, int64_t rows, const uint16_t* pairs, int64_t keys,
                     int64_t dim, const float* correction, float* y);
};
extern const Compared kAmx, kStandin;

}  // namespace bare
