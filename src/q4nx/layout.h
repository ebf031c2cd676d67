// Q4NX: 4-bit weights in blocks of 32 out-features x 256 in-features, 5,120 bytes each.
//
//   bytes    0 ..  511   256 scales, bfloat16, index (k / 32) * 32 + n
//   bytes  512 .. 1023   256 minima, bfloat16, same index
//   bytes 1024 .. 5119   8,192 codes: byte (n / 16) * 2048 + k * 8 + (n % 16) / 2,
//                        low nibble for even n
//
// weight(n, k) = scale * code + min. Blocks stand row-major, (N/32, K/256). This is the order in
// shipping .q4nx files and the order AMD's open kernels read.
#pragma once

#include <cstdint>

namespace ort_aie::q4nx {

inline constexpr int64_t kBlockRows = 32;   // out-features in a block
inline constexpr int64_t kBlockCols = 256;  // in-features in a block
inline constexpr int64_t kGroup = 32;       // in-features that share a scale and a minimum
inline constexpr int64_t kGroupsPerBlock = kBlockCols / kGroup;
inline constexpr int64_t kMinsOffset = 512;
inline constexpr int64_t kCodesOffset = 1024;
inline constexpr int64_t kHalfBytes = 2048;  // codes of 16 out-features
inline constexpr int64_t kBlockBytes = 5120;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RowBlocks(int64_t n) { return CeilDiv(n, kBlockRows); }
constexpr int64_t ColBlocks(int64_t k) { return CeilDiv(k, kBlockCols); }
constexpr int64_t PaddedRows(int64_t n) { return RowBlocks(n) * kBlockRows; }
constexpr int64_t PaddedCols(int64_t k) { return ColBlocks(k) * kBlockCols; }

}  // namespace ort_aie::q4nx
