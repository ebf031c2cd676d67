// The device's copies of a layer's KV cache. The host's present is the truth: a copy serves a call
// only if the rows that it has of the call's past are equal to the host's, bit for bit.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "targets/npu/engine.h"

namespace ort_aie::npu_target {

// Layout on the device: keys, then values, [batch][kv_heads][capacity/8][padded dim/8][8 keys]
// [8 dimensions] bfloat16, with zeros beyond dim. Behind the valid rows are older ones or zeros;
// behind those that the host sent always zeros up to a multiple of eight keys, because a prompt's
// blocks of bfp16 share an exponent.
class KvCopy {
 public:
  KvCopy(Engine& engine, const AttentionStep& step);

  // For a step that `Fits`; its present is complete on the host.
  bool Fits(const AttentionStep& step) const;
  enum class Rows { kExactly, kMore };  // than the step's past has
  bool Has(const AttentionStep& step, Rows rows) const;
  bool PastIsEqual(const AttentionStep& step, const ThreadPool& threads) const;
  // Where the rows came from when it was used last.
  const void* present() const { return present_; }
  uint64_t generation() const { return generation_; }
  void Forget() { rows_.assign(rows_.size(), 0); }

  // Makes it hold `rows` of the step's present, by batch row, with room for all: keeps the rows of
  // the past that it has and sends the others. If it throws, the copy is of no use any more.
  void Update(const AttentionStep& step, std::span<const int64_t> rows, const ThreadPool& threads);
  // The device has the step's new rows, and they are equal to the present's.
  void Appended(const AttentionStep& step);

  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  int64_t capacity() const { return capacity_; }
  int64_t KeyOffset(int64_t b) const { return b * kv_heads_ * HeadBytes(); }
  int64_t ValueOffset(int64_t b) const { return (batch_ + b) * kv_heads_ * HeadBytes(); }

 private:
  int64_t HeadBytes() const { return capacity_ * padded_ * 2; }
  void Grow(const AttentionStep& step);
  // Row 0 of a head (of all batch rows) in the host's present, and in the shadow.
  const uint8_t* Truth(const AttentionStep& step, bool values, int64_t head) const;
  int64_t ShadowOffset(bool values, int64_t head) const;
  void Convert(const AttentionStep& step, bool values, int64_t head, int64_t from, int64_t to);

  Engine& engine_;
  const uint64_t generation_;
  const int64_t batch_, kv_heads_, dim_, padded_;
  const DataType type_;
  int64_t capacity_ = 0;
  std::vector<int64_t> rows_;    // valid, by batch row
  std::vector<uint8_t> shadow_;  // of type_: [keys, values][batch][kv_heads][capacity][dim]
  std::shared_ptr<Buffer> buffer_;
  const void* present_ = nullptr;
};

// The copies of one layer: several, so that generators that take turns on one session each find
// their own.
class KvCopies {
 public:
  static constexpr size_t kMost = 4;

  // A copy that holds `rows` of the step's present, by batch row, and has room for all. It is for
  // the caller alone until it is put back; one that is not put back is forgotten.
  std::unique_ptr<KvCopy> Take(Engine& engine, const AttentionStep& step,
                               std::span<const int64_t> rows, const ThreadPool& threads);
  void PutBack(Engine& engine, std::unique_ptr<KvCopy> copy);

 private:
  std::unique_ptr<KvCopy> Choose(const AttentionStep& step, const ThreadPool& threads);

  std::mutex mutex_;
  uint64_t generation_ = 0;
  std::list<std::unique_ptr<KvCopy>> copies_;  // the one used last comes first
};

// The head dimension for which the device has a layout: 64, 128 or 256.
constexpr int64_t PaddedHeadDim(int64_t dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

}  // namespace ort_aie::npu_target
