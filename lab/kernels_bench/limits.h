// Loops that do only what limits a kernel: reads, copies, and multiply-adds in registers. Their
// times are the limits with which kernels_bench compares the kernels.
#pragma once

#include <cstdint>

namespace ort_aie::host {

struct PeakLoop {
  void (*run)(int64_t turns);
  double flops;  // operations per turn; a multiply-add counts as two
};

// The best speed of one thread with the instructions of a kernel table.
struct LimitLoops {
  const char* isa;
  // Arrays are 64-byte aligned, bytes a multiple of 512.
  void (*read)(const uint8_t* data, int64_t bytes);
  void (*copy)(const uint8_t* data, int64_t bytes, uint8_t* to);
  PeakLoop fp32;
  PeakLoop bf16;  // the dot product if the table has one, else fp32
  PeakLoop int8;  // into 32 bits, or into 16 if the table has only those (maddubs)
};

// For a table from AvailableKernels().
const LimitLoops& LimitLoopsOf(const char* isa);

}  // namespace ort_aie::host
