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
#include "targets/npu/schedule/cache_rows.h"

namespace ort_aie::npu_target {

// Where the host has new rows of a step, (batch, kv_heads, capacity, dim): row 0 of batch row b
// belongs to token first[b].
struct HostRows {
  const void *keys = nullptr, *values = nullptr;
  int64_t capacity = 0;
  std::vector<int64_t> first;
};

// The copy of one layer's cache with its rows. The rows after the valid ones are older rows or
// zeros. After rows that the host sent, there are always zeros up to a multiple of eight keys,
// because the bfp16 blocks of a prompt share an exponent.
class KvCopy : public CacheRows {
 public:
  KvCopy(Engine& engine, const AttentionStep& step) : CacheRows(step), engine_(engine) {}

  // At a place that holds zeros.
  void Place(std::shared_ptr<Buffer> buffer, int64_t offset, int64_t capacity);

  // Whether all rows that it holds of the step's past equal the host's.
  bool PastIsEqual(const AttentionStep& step, const ThreadPool& threads) const;
  // Keeps those rows of each batch row that equal the host's. If `known`, all of them do.
  void Keep(const AttentionStep& step, bool known, const ThreadPool& threads);
  // Where the rows came from in the last use.
  const void* present() const { return present_; }

  // Makes it hold what the queries of `lengths` read, up to `rows` by batch row, with room for
  // them. Sends the missing rows, of the past or of `fresh`. Call it after Keep, with lengths in
  // order.
  void Hold(const AttentionStep& step, const Lengths& lengths, std::span<const int64_t> rows,
            const HostRows& fresh, const ThreadPool& threads);
  // Fetches the rows that the device has appended for the step's tokens to each head.
  void FetchNew(const AttentionStep& step);
  // A row of a head (of keys, then of values) as the device has it: (padded dim) bfloat16.
  void Row(int64_t head, int64_t token, uint16_t* y) const;
  // Tells it that the device has the step's new rows, and that they equal `fresh`.
  void Appended(const AttentionStep& step, const HostRows& fresh, const ThreadPool& threads);

 private:
  bool IsEqual(const AttentionStep& step, int64_t head, Range tokens) const;
  void MoveTo(size_t b, int64_t first);
  void Convert(const AttentionStep& step, int64_t head, Range tokens, const HostRows& fresh);
  uint8_t* HostSide(int64_t head) const { return buffer_->host() + offset_ + head * HeadBytes(); }

  Engine& engine_;
  std::vector<RowMark> marks_;  // of the host's rows: [keys, values][batch][kv_heads][capacity]
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

}  // namespace ort_aie::npu_target
