// The forms of weights, all in blocks of 32 out-features x 256 in-features that stand row-major,
// (N/32, K/256), and are padded with zeros. Those of GGUF files are in file_forms.h; the rest of
// this comment is about the others.
//
// A form says how many in-features share a scale and a minimum, its group (32, 64, 128 or 256), and
// whether the minima are stored: those of symmetric weights, -2^(bits-1) * scale, need not be.
//
// Q4NX and Q2NX hold codes of 4 and of 2 bits, after S = 64 * 256 / group bytes of scales:
//   S bytes   scales, bfloat16, index (k / group) * 32 + n
//   S bytes   minima, bfloat16, same index, if they are stored
//   4,096     Q4NX: 8,192 codes, byte (n / 16) * 2048 + k * 8 + (n % 16) / 2, low nibble for even n
//   2,048     Q2NX: two bit planes, byte (k / 4) * 32 + (n / 2) * 2 + plane, low nibble for even n;
//             bit k % 4 of a nibble is that of the code
//
// weight(n, k) = scale * code + min. With groups of 32 and minima, Q4NX (5,120 bytes) is in the
// order of shipping .q4nx files, which AMD's open kernels read. A nibble of Q2NX is one bit of four
// codes: the index of a table with 16 entries (T-MAN, 4.1).
//
// Q8NX holds codes of 8 bits:
//   8,192     codes, [k / 4][n][k % 4]
//   2 S       scales, float32, index (k / group) * 32 + n
//   S / 2     zero points, uint8, same index, if they are stored; else each is 128
//
// weight(n, k) = scale * (code - zero point). Integer dot products read four k of an out-feature
// from a lane of 32 bits, so this order needs no shuffle. The steps of 8 bits are so fine that a
// scale in bfloat16 would add a visible error: scales are exact here, and so are zero points.
//
// Bf16 holds 8,192 weights as they are, in bfloat16: [k / 8][n / 8][k % 8][n % 8], the order in
// which the NPU's GEMM reads B (aie_kernels/gemm/README.md).
#pragma once

#include <cstdint>

#include "q4nx/file_forms.h"

namespace ort_aie {

// What a block holds.
enum class WeightKind { kQ4NX, kQ2NX, kQ8NX, kBf16, kFile };

struct WeightForm {
  WeightKind kind = WeightKind::kQ4NX;
  int64_t group = 32;                // in-features that share a scale and a minimum
  bool minima = true;                // stored; of 8 bits: zero points
  FileType type = FileType::kCount;  // of kFile, which gives group and minima

  friend bool operator==(const WeightForm&, const WeightForm&) = default;
};

namespace q4nx {

inline constexpr int64_t kBlockRows = 32;   // out-features in a block
inline constexpr int64_t kBlockCols = 256;  // in-features in a block
inline constexpr int64_t kGroup = 32;       // in-features of the smallest group
inline constexpr int64_t kGroupsPerBlock = kBlockCols / kGroup;
inline constexpr int64_t kHalfBytes = 2048;      // Q4NX: codes of 16 out-features
inline constexpr int64_t kQuad = 4;              // Q2NX: in-features in a nibble
inline constexpr int64_t kQuadBytes = 32;        // their codes
inline constexpr int64_t kScalesOffset8 = 8192;  // Q8NX: its codes are at the start
// The form of shipping files.
inline constexpr WeightForm kShipping = {};
inline constexpr int64_t kBlockBytes = 5120;

constexpr bool IsGroup(int64_t group) {
  return group == 32 || group == 64 || group == 128 || group == 256;
}
// Bytes of the codes of a block; of Bf16: of its weights.
constexpr int64_t CodeBytesOf(WeightKind kind) {
  switch (kind) {
    case WeightKind::kQ2NX:
      return kBlockRows * kBlockCols / 4;
    case WeightKind::kQ8NX:
      return kBlockRows * kBlockCols;
    case WeightKind::kBf16:
      return 2 * kBlockRows * kBlockCols;
    default:
      return kBlockRows * kBlockCols / 2;
  }
}
// Scales of a block, and as many minima.
constexpr int64_t ScalesOf(const WeightForm& form) { return kBlockCols / form.group * kBlockRows; }
// From a block's start.
constexpr int64_t MinimaOffset(const WeightForm& form) {
  return form.kind == WeightKind::kQ8NX ? kScalesOffset8 + 4 * ScalesOf(form) : 2 * ScalesOf(form);
}
constexpr int64_t CodesOffset(const WeightForm& form) {
  if (form.kind == WeightKind::kQ8NX || form.kind == WeightKind::kBf16) return 0;
  return (form.minima ? 4 : 2) * ScalesOf(form);
}
constexpr int64_t BlockBytes(const WeightForm& form) {
  if (form.kind == WeightKind::kFile) return LayoutOfBlock(FileFormOf(form.type)).bytes;
  const int64_t codes = CodeBytesOf(form.kind);
  if (form.kind == WeightKind::kBf16) return codes;
  if (form.kind == WeightKind::kQ8NX) return codes + (form.minima ? 5 : 4) * ScalesOf(form);
  return codes + CodesOffset(form);
}
static_assert(BlockBytes(kShipping) == kBlockBytes);
constexpr WeightForm FormOf(FileType type) {
  const FileForm& form = FileFormOf(type);
  return {WeightKind::kFile, form.group, form.minima, type};
}
// In-features in a block.
constexpr int64_t ColumnsOf(const WeightForm& form) {
  return form.kind == WeightKind::kFile ? FileFormOf(form.type).columns : kBlockCols;
}
// For quantised weights.
constexpr bool IsBits(int64_t bits) { return bits == 2 || bits == 4 || bits == 8; }
constexpr WeightKind KindOfBits(int64_t bits) {
  return bits == 2 ? WeightKind::kQ2NX : bits == 8 ? WeightKind::kQ8NX : WeightKind::kQ4NX;
}
constexpr int64_t BitsOf(WeightKind kind) {
  return kind == WeightKind::kQ2NX ? 2 : kind == WeightKind::kQ8NX ? 8 : 4;
}
// The zero point of weights that state none; their minima are -(this) * scale.
constexpr int64_t DefaultZeroPoint(int64_t bits) { return int64_t{1} << (bits - 1); }
// The smallest form of weights whose scales are for `block_size` in-features each, a multiple of
// 32; symmetric ones have the default zero point everywhere.
constexpr WeightForm SmallestForm(int64_t bits, int64_t block_size, bool symmetric) {
  int64_t group = kBlockCols;
  while (group > kGroup && block_size % group != 0) group /= 2;
  return {KindOfBits(bits), group, !symmetric};
}

// For numbers that are not negative. The functions below also take Size (base/size.h), for
// unchecked numbers: the numbers of weights that exist are far below the limit of int64_t.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
template <typename T>
constexpr T RowBlocks(T n) {
  return CeilDiv(n, kBlockRows);
}
template <typename T>
constexpr T ColBlocks(T k, const WeightForm& form = kShipping) {
  return CeilDiv(k, ColumnsOf(form));
}
template <typename T>
constexpr T PaddedRows(T n) {
  return RowBlocks(n) * kBlockRows;
}
template <typename T>
constexpr T PaddedCols(T k, const WeightForm& form = kShipping) {
  return ColBlocks(k, form) * ColumnsOf(form);
}
// Bytes of the blocks of n x k weights.
template <typename T>
constexpr T BytesOfBlocks(T n, T k, const WeightForm& form) {
  return RowBlocks(n) * ColBlocks(k, form) * BlockBytes(form);
}

}  // namespace q4nx
}  // namespace ort_aie
