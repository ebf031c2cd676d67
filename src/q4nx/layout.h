// The forms of weights, all in blocks of 32 out-features x 256 in-features that stand row-major,
// (N/32, K/256), and are padded with zeros.
//
// Q4NX and Q2NX hold codes of 4 and of 2 bits:
//   bytes    0 ..  511   256 scales, bfloat16, index (k / 32) * 32 + n
//   bytes  512 .. 1023   256 minima, bfloat16, same index
//   bytes 1024 .. 5119   Q4NX, 5,120 bytes in all: 8,192 codes, byte (n / 16) * 2048 + k * 8 +
//                        (n % 16) / 2, low nibble for even n
//   bytes 1024 .. 3071   Q2NX, 3,072 bytes in all: two bit planes,
//                        byte (k / 4) * 32 + (n / 2) * 2 + plane, low nibble for even n;
//                        bit k % 4 of a nibble is that of the code
//
// weight(n, k) = scale * code + min. Q4NX is in the order of shipping .q4nx files, which AMD's open
// kernels read. A nibble of Q2NX is one bit of four codes: the index of a table with 16 entries
// (paper 4, 4.1).
//
// Q8NX holds codes of 8 bits, 9,472 bytes in all:
//   bytes    0 .. 8191   codes, [k / 4][n][k % 4]
//   bytes 8192 .. 9215   256 scales, float32, index (k / 32) * 32 + n
//   bytes 9216 .. 9471   256 zero points, uint8, same index
//
// weight(n, k) = scale * (code - zero point). Integer dot products read four k of an out-feature
// from a lane of 32 bits, so this order needs no shuffle. The steps of 8 bits are so fine that a
// scale in bfloat16 would add a visible error: scales are exact here, and so are zero points.
//
// Bf16 holds 8,192 weights as they are, in bfloat16: [k / 8][n / 8][k % 8][n % 8], the order in
// which the NPU's GEMM reads B (docs/npu-gemm.md).
#pragma once

#include <cstdint>

namespace ort_aie {

enum class WeightForm { kQ4NX, kQ2NX, kQ8NX, kBf16 };

namespace q4nx {

inline constexpr int64_t kBlockRows = 32;   // out-features in a block
inline constexpr int64_t kBlockCols = 256;  // in-features in a block
inline constexpr int64_t kGroup = 32;       // in-features that share a scale and a minimum
inline constexpr int64_t kGroupsPerBlock = kBlockCols / kGroup;
inline constexpr int64_t kMinsOffset = 512;
inline constexpr int64_t kCodesOffset = 1024;
inline constexpr int64_t kHalfBytes = 2048;  // Q4NX: codes of 16 out-features
inline constexpr int64_t kBlockBytes = 5120;
inline constexpr int64_t kQuad = 4;        // Q2NX: in-features in a nibble
inline constexpr int64_t kQuadBytes = 32;  // their codes
inline constexpr int64_t kBlockBytes2 = 3072;
inline constexpr int64_t kScalesOffset8 = 8192;  // Q8NX: its codes are at the start
inline constexpr int64_t kZerosOffset8 = 9216;
inline constexpr int64_t kBlockBytes8 = 9472;

constexpr int64_t BlockBytes(WeightForm form) {
  switch (form) {
    case WeightForm::kQ2NX:
      return kBlockBytes2;
    case WeightForm::kQ8NX:
      return kBlockBytes8;
    case WeightForm::kBf16:
      return 2 * kBlockRows * kBlockCols;
    default:
      return kBlockBytes;
  }
}
// For quantised weights.
constexpr bool IsBits(int64_t bits) { return bits == 2 || bits == 4 || bits == 8; }
constexpr WeightForm FormOfBits(int64_t bits) {
  return bits == 2 ? WeightForm::kQ2NX : bits == 8 ? WeightForm::kQ8NX : WeightForm::kQ4NX;
}
// The zero point of weights that state none; their minima are -(this) * scale.
constexpr int64_t DefaultZeroPoint(int64_t bits) { return int64_t{1} << (bits - 1); }

// For numbers that are not negative. The functions below also take Size (base/size.h), for
// unchecked numbers: the numbers of weights that exist are far below the limit of int64_t.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
template <typename T>
constexpr T RowBlocks(T n) {
  return CeilDiv(n, kBlockRows);
}
template <typename T>
constexpr T ColBlocks(T k) {
  return CeilDiv(k, kBlockCols);
}
template <typename T>
constexpr T PaddedRows(T n) {
  return RowBlocks(n) * kBlockRows;
}
template <typename T>
constexpr T PaddedCols(T k) {
  return ColBlocks(k) * kBlockCols;
}
// Bytes of the blocks of n x k weights.
template <typename T>
constexpr T BytesOfBlocks(T n, T k, WeightForm form) {
  return RowBlocks(n) * ColBlocks(k) * BlockBytes(form);
}

}  // namespace q4nx
}  // namespace ort_aie
