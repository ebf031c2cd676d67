// The host's rows of attention: queries and new keys and values on their way to the device, and
// what comes back from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "targets/npu/kv_copies.h"
#include "targets/target.h"

namespace ort_aie::npu_target {

// All heads of a token's query -> (heads, padded dim), with zeros beyond dim.
void StoreQueries(const AttentionStep& step, int64_t token, uint16_t* y);

// (heads, padded dim) -> the output of a token.
void StoreOutput(const AttentionStep& step, const uint16_t* o, int64_t token);

// The new rows of a windowed cache, (batch, kv_heads, tokens, dim). They are kept separate until
// the device is done: with an in-place cache, the present is also the past that a second attempt
// needs.
struct FreshRows {
  FreshRows(const AttentionStep& step, const Range& new_tokens);

  void* keys() { return memory.data(); }
  void* values() { return memory.data() + bytes; }
  HostRows Of(const AttentionStep& step);

  Range tokens;
  size_t bytes;
  std::vector<uint8_t> memory;
};

// The new rows, at their places in the present.
HostRows InPresent(const AttentionStep& step);

// The new rows of a step that the host gets: at their places in the present, or separate until the
// device is done.
class NewRows {
 public:
  explicit NewRows(const AttentionStep& step);

  const HostRows& rows() const { return rows_; }
  bool separate() const { return fresh_ != nullptr; }

  // Before the run: writes what the host has, which includes the new rows if the host made them.
  void WriteHosts(const ThreadPool& threads, bool made) const;

  // After the run: stores rows that the device has made and appended to the copy; of(head, token,
  // value) gives the key or value of a new token, in any thread. If the cache's type cannot
  // represent all of them (float16, values below 2^-17), the device's rows differ from the host's,
  // and the next call sends them.
  using Rows = std::function<const uint16_t*(int64_t head, int64_t token, bool value)>;
  void Store(KvCopy& copy, const ThreadPool& threads, const Rows& of) const;

  // At the end: moves separate rows into the present.
  void Shift(const ThreadPool& threads) const;

 private:
  const AttentionStep& step_;
  std::shared_ptr<FreshRows> fresh_;
  HostRows rows_;
};

}  // namespace ort_aie::npu_target
