// The device's copies of KV caches. The host's rows are authoritative: a copy serves a call only if
// its rows of the call's past equal the host's.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "targets/npu/engine.h"
#include "targets/npu/row_marks.h"

namespace ort_aie::npu_target {

// The number of tokens before and after a chunk of a call, by batch row.
struct Span {
  std::vector<int64_t> past, total;
};
// The span of tokens [first, end) of the step's new ones.
Span SpanOf(const AttentionStep& step, int64_t first, int64_t end);

// The first key that a query after `past` tokens sees, or that any later query sees.
int64_t FirstKey(const AttentionStep& step, size_t b, int64_t past);

// Where the host has new rows of a step, (batch, kv_heads, capacity, dim): row 0 of batch row b
// belongs to token first[b].
struct HostRows {
  const void *keys = nullptr, *values = nullptr;
  int64_t capacity = 0;
  std::vector<int64_t> first;
};

// The copy of one layer's cache, with the newest tokens of each batch row. Layout on the device:
// keys, then values, [batch][kv_heads][capacity/8][padded dim/8][8 keys][8 dimensions] bfloat16,
// with zeros beyond dim. The rows after the valid ones are older rows or zeros. After rows that the
// host sent, there are always zeros up to a multiple of eight keys, because the bfp16 blocks of a
// prompt share an exponent.
class KvCopy {
 public:
  KvCopy(Engine& engine, const AttentionStep& step);

  bool Fits(const AttentionStep& step) const;

  // --- its place ---

  // The number of keys for which a head must have room if `step` processes `tokens` at a time; the
  // current capacity if that is enough.
  int64_t CapacityFor(const AttentionStep& step, int64_t tokens) const;
  int64_t BytesOf(int64_t capacity) const { return 4 * batch_ * kv_heads_ * capacity * padded_; }
  // Places it at `offset` of a buffer that holds zeros there. No row is valid then.
  void Place(std::shared_ptr<Buffer> buffer, int64_t offset, int64_t capacity);
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  int64_t capacity() const { return capacity_; }

  // --- its rows ---

  // How many rows of the step's past it has that the step reads. EndsWith: whether its rows end
  // where the past ends.
  int64_t Held(const AttentionStep& step) const;
  bool EndsWith(const AttentionStep& step) const;
  // Whether all of these equal the host's.
  bool PastIsEqual(const AttentionStep& step, const ThreadPool& threads) const;
  // Keeps those rows of each batch row that equal the host's. If `known`, all of them do.
  void Keep(const AttentionStep& step, bool known, const ThreadPool& threads);
  // Where the rows came from in the last use.
  const void* present() const { return present_; }

  // Makes it hold what the queries of `span` read, up to `rows` by batch row, with room for the
  // span. Sends the missing rows, of the past or of `fresh`. Call it after Keep, with spans in
  // order.
  void Hold(const AttentionStep& step, const Span& span, std::span<const int64_t> rows,
            const HostRows& fresh, const ThreadPool& threads);
  // Fetches the row that the device has appended for the step's last token to each head.
  void FetchLast(const AttentionStep& step);
  // A row of a head (of keys, then of values) as the device has it: (padded dim) bfloat16.
  void Row(int64_t head, int64_t token, uint16_t* y) const;
  // Tells it that the device has the step's new rows, and that they equal `fresh`.
  void Appended(const AttentionStep& step, const HostRows& fresh);

  // The token of row 0, by batch row.
  int64_t FirstToken(size_t b) const { return rows_[b].first; }
  int64_t KeyOffset(int64_t b) const { return offset_ + b * kv_heads_ * HeadBytes(); }
  int64_t ValueOffset(int64_t b) const { return KeyOffset(batch_ + b); }

 private:
  int64_t HeadBytes() const { return capacity_ * padded_ * 2; }
  int64_t heads() const { return batch_ * kv_heads_; }
  size_t BatchRow(int64_t head) const { return static_cast<size_t>(head % heads() / kv_heads_); }
  bool Serves(const AttentionStep& step, size_t b) const;
  // The range of tokens that it holds, the step reads, and belong to the step's past.
  Range Useful(const AttentionStep& step, size_t b) const;
  bool IsEqual(const AttentionStep& step, int64_t head, Range tokens) const;
  void MoveTo(size_t b, int64_t first);
  void Convert(const AttentionStep& step, int64_t head, Range tokens, const HostRows& fresh);
  uint8_t* HostSide(int64_t head) const { return buffer_->host() + offset_ + head * HeadBytes(); }

  Engine& engine_;
  const int64_t batch_, kv_heads_, dim_, padded_;
  const DataType type_;
  int64_t capacity_ = 0, offset_ = 0;
  std::vector<Range> rows_;     // valid tokens, by batch row
  std::vector<RowMark> marks_;  // of the host's rows: [keys, values][batch][kv_heads][capacity]
  std::shared_ptr<Buffer> buffer_;
  const void* present_ = nullptr;
};

// Copies for all attention steps of a plan, in one buffer (or in several of at most
// kMaxBufferBytes).
class KvSlab {
 public:
  using Steps = std::span<const AttentionStep* const>;
  // How many tokens of a step are processed at a time; 0: the device does not do the step.
  using Tokens = std::function<int64_t(const AttentionStep&)>;

  KvSlab(Engine& engine, Steps steps);

  bool Fits(Steps steps) const;
  // Makes room for the steps. If there is not enough, all rows of all layers are dropped.
  void Reserve(Steps steps, const Tokens& tokens);
  KvCopy& layer(size_t i) { return layers_[i]; }
  const KvCopy& layer(size_t i) const { return layers_[i]; }
  uint64_t generation() const { return generation_; }

 private:
  Engine& engine_;
  const uint64_t generation_;
  std::vector<KvCopy> layers_;
};

// The slabs of one plan, or of an op by itself. There are several, so that generators that
// alternate on one session each find their own.
class KvCopies {
 public:
  static constexpr size_t kMost = 4;

  struct Taken {
    std::unique_ptr<KvSlab> slab;
    bool known = false;  // whether it is known that what step `asked` reads equals the host's
  };
  // The slab that serves step `asked` best. Only the caller has it until it is put back; a slab
  // that is not put back is forgotten.
  Taken Take(Engine& engine, KvSlab::Steps steps, size_t asked, const ThreadPool& threads);
  void PutBack(Engine& engine, std::unique_ptr<KvSlab> slab);

 private:
  Taken Choose(KvSlab::Steps steps, size_t asked, const ThreadPool& threads);

  std::mutex mutex_;
  uint64_t generation_ = 0;
  std::list<std::unique_ptr<KvSlab>> slabs_;  // most recently used first
};

// The head dimension for which the device has a layout: 64, 128 or 256.
constexpr int64_t PaddedHeadDim(int64_t dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

}  // namespace ort_aie::npu_target
