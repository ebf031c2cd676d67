// Loops that do nothing but what limits a kernel: reads, copies, and multiply-adds in registers.
// Timed, they are the limits that kernels_bench compares kernels with.
#pragma once

#include <cstdint>

namespace ort_aie::host {

struct PeakLoop {
  void (*run)(int64_t turns);
  double flops;  // operations of a turn; a multiply-add counts as two
};

// The best that one thread can do with the instructions of a kernel table.
struct LimitLoops {
  const char* isa;
  // Arrays are 64-byte aligned, bytes a multiple of 512.
  void (*read)(const uint8_t* data, int64_t bytes);
  void (*copy)(const uint8_t* data, int64_t bytes, uint8_t* to);
  PeakLoop fp32;
  PeakLoop bf16;  // the dot product where there is one, else fp32
  PeakLoop int8;  // into 32 bits, or into 16 where that is all there is (maddubs)
};

// Of a table that AvailableKernels() has.
const LimitLoops& LimitLoopsOf(const char* isa);

}  // namespace ort_aie::host
