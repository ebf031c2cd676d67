// A stand-in for the instruction of AVX-VNNI, for CPUs with AVX2: acc + the sum of four products of
// unsigned bytes of w and signed ones of a, in each lane; the bytes at even and at odd places.
#pragma once

#include <immintrin.h>

#define ORT_AIE_DPBUSD(acc, w, a)                                                                \
  ((acc) + (vi)_mm256_madd_epi16((__m256i)((w) & 0x00ff00ffu), (__m256i)(((vh)(a) << 8) >> 8)) + \
   (vi)_mm256_madd_epi16((__m256i)(((w) >> 8) & 0x00ff00ffu), (__m256i)((vh)(a) >> 8)))
