// Which tokens of a layer's KV cache a device's copy has, and where it has them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ops/plan.h"
#include "targets/npu/buffer.h"

namespace ort_aie::npu_target {

// The number of tokens before and after a chunk of a call, by batch row.
struct Lengths {
  std::vector<int64_t> past, total;
};
// Those of tokens [first, end) of the step's new ones.
Lengths LengthsOf(const AttentionStep& step, int64_t first, int64_t end);

// The first key that a query after `past` tokens sees, or that any later query sees.
int64_t FirstKey(const AttentionStep& step, size_t b, int64_t past);

// The head dimension for which the device has a layout: 64, 128 or 256.
constexpr int64_t PaddedHeadDim(int64_t dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

// The copy of one layer's cache, with the newest tokens of each batch row. Layout on the device:
// keys, then values, [batch][kv_heads][capacity/8][padded dim/8][8 keys][8 dimensions] bfloat16,
// with zeros beyond dim.
class CacheRows {
 public:
  explicit CacheRows(const AttentionStep& step);

  bool Fits(const AttentionStep& step) const;

  // --- its place ---

  // The number of keys for which a head must have room if `step` processes `tokens` at a time; the
  // current capacity if that is enough.
  int64_t CapacityFor(const AttentionStep& step, int64_t tokens) const;
  int64_t BytesOf(int64_t capacity) const { return 4 * batch_ * kv_heads_ * capacity * padded_; }
  // Places it at `offset` of a buffer. No row is valid then.
  void Place(std::shared_ptr<Buffer> buffer, int64_t offset, int64_t capacity);
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  int64_t capacity() const { return capacity_; }
  int64_t KeyOffset(int64_t b) const { return offset_ + b * kv_heads_ * HeadBytes(); }
  int64_t ValueOffset(int64_t b) const { return KeyOffset(batch_ + b); }

  // --- its rows ---

  // The token of row 0, by batch row.
  int64_t FirstToken(size_t b) const { return rows_[b].first; }
  // The same once there is room for `lengths`: rows that no query sees any more may have to go.
  // Throws Error if there is none.
  int64_t FirstTokenFor(const AttentionStep& step, size_t b, const Lengths& lengths) const;
  // None of the step's past is there.
  void Empty(const AttentionStep& step);
  // It gets what the queries of `lengths` read, up to `rows` by batch row.
  void Advance(const AttentionStep& step, const Lengths& lengths, std::span<const int64_t> rows);

  // How many rows of the step's past it has that the step reads. EndsWith: whether its rows end
  // where the past ends.
  int64_t Held(const AttentionStep& step) const;
  bool EndsWith(const AttentionStep& step) const;

 protected:
  int64_t HeadBytes() const { return capacity_ * padded_ * 2; }
  int64_t heads() const { return batch_ * kv_heads_; }
  size_t BatchRow(int64_t head) const { return static_cast<size_t>(head % heads() / kv_heads_); }
  // The range of tokens that it holds, the step reads, and belong to the step's past.
  Range Useful(const AttentionStep& step, size_t b) const;

  int64_t batch_, kv_heads_, dim_, padded_;
  DataType type_;
  int64_t capacity_ = 0, offset_ = 0;
  std::vector<Range> rows_;  // valid tokens, by batch row
  std::shared_ptr<Buffer> buffer_;

 private:
  bool Serves(const AttentionStep& step, size_t b) const;
};

}  // namespace ort_aie::npu_target
