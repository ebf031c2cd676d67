#include "targets/npu/schedule/cache_rows.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kCapacityMultiple = 64;  // 4,096 elements for each head dimension
constexpr int64_t kLeastCapacity = 256;

bool Windowed(const AttentionStep& step) { return step.causal && step.window > 0; }

int64_t FirstVisible(const AttentionStep& step, size_t b) {
  return step.visible_keys.empty() ? 0 : step.visible_keys[b].first;
}

}  // namespace

Lengths LengthsOf(const AttentionStep& step, int64_t first, int64_t end) {
  Lengths lengths;
  for (size_t b = 0; b < step.past_length.size(); ++b) {
    const int64_t past = step.past_length[b], total = step.total_length[b];
    lengths.past.push_back(std::min(past + first, total));
    lengths.total.push_back(std::min(past + end, total));
  }
  return lengths;
}

int64_t FirstKey(const AttentionStep& step, size_t b, int64_t past) {
  const int64_t visible = FirstVisible(step, b);
  return Windowed(step) ? std::max(visible, past - step.window + 1) : visible;
}

CacheRows::CacheRows(const AttentionStep& step)
    : batch_(step.batch),
      kv_heads_(step.kv_heads),
      dim_(step.dim),
      padded_(PaddedHeadDim(step.dim)),
      type_(step.cache_type),
      rows_(static_cast<size_t>(step.batch), Range{0, 0}) {}

bool CacheRows::Fits(const AttentionStep& step) const {
  return batch_ == step.batch && kv_heads_ == step.kv_heads && dim_ == step.dim &&
         type_ == step.cache_type;
}

int64_t CacheRows::CapacityFor(const AttentionStep& step, int64_t tokens) const {
  int64_t longest = 0, held = 0, total = 0;  // the most visible keys; with those held; and all
  for (size_t b = 0; b < rows_.size(); ++b) {
    total = std::max(total, step.total_length[b]);
    longest = std::max(longest, step.total_length[b] - FirstKey(step, b, step.past_length[b]));
    held = std::max(held, step.total_length[b] - rows_[b].first);
  }
  const int64_t roomy = std::max(
      kLeastCapacity, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest + 1))));
  if (Windowed(step)) {
    // Rows that are no longer visible are dropped only when there is no room left. With room for
    // two windows, each row is moved once.
    const int64_t least = std::min(longest, step.window - 1 + tokens);
    if (least <= capacity_ && (held <= capacity_ || capacity_ >= 2 * step.window)) return capacity_;
    const int64_t most = std::max({kLeastCapacity, least, 2 * step.window});
    return std::min(roomy, RoundUp(most, kCapacityMultiple));
  }
  if (longest <= capacity_) return capacity_;
  // Room for some more keys, because a larger copy has to be sent as a whole.
  if (step.present_capacity > total) {  // a cache whose size was fixed before
    return std::min(roomy, RoundUp(step.present_capacity, kCapacityMultiple));
  }
  return roomy;
}

void CacheRows::Place(std::shared_ptr<Buffer> buffer, int64_t offset, int64_t capacity) {
  buffer_ = std::move(buffer);
  offset_ = offset;
  capacity_ = capacity;
  rows_.assign(rows_.size(), Range{0, 0});
}

int64_t CacheRows::FirstTokenFor(const AttentionStep& step, size_t b,
                                 const Lengths& lengths) const {
  if (lengths.total[b] - rows_[b].first <= capacity_) return rows_[b].first;
  const int64_t first = FirstKey(step, b, lengths.past[b]);
  Require(lengths.total[b] - first <= capacity_, "the copy of a cache has ", capacity_,
          " rows, but a call needs ", lengths.total[b] - first);
  return first;
}

void CacheRows::Empty(const AttentionStep& step) {
  for (size_t b = 0; b < rows_.size(); ++b) {
    const int64_t first = FirstKey(step, b, step.past_length[b]);
    rows_[b] = {first, first};
  }
}

void CacheRows::Advance(const AttentionStep& step, const Lengths& lengths,
                        std::span<const int64_t> rows) {
  for (size_t b = 0; b < rows_.size(); ++b) {
    const int64_t first = FirstTokenFor(step, b, lengths);
    rows_[b] = {first, std::max({first, rows_[b].end, rows[b]})};
  }
}

// Whether row 0 is where the step can use it: at its first key, or before it if the window hides
// the keys in between.
bool CacheRows::Serves(const AttentionStep& step, size_t b) const {
  const int64_t past = step.past_length[b], key = FirstKey(step, b, past);
  return rows_[b].first == key ||
         (rows_[b].first < key && Windowed(step) && key == past - step.window + 1);
}

Range CacheRows::Useful(const AttentionStep& step, size_t b) const {
  const int64_t key = FirstKey(step, b, step.past_length[b]);
  const int64_t end = Serves(step, b) ? std::min(rows_[b].end, step.past_length[b]) : key;
  return {key, std::max(key, end)};
}

int64_t CacheRows::Held(const AttentionStep& step) const {
  int64_t rows = 0;
  for (size_t b = 0; b < rows_.size(); ++b) rows += Useful(step, b).end - Useful(step, b).first;
  return rows;
}

bool CacheRows::EndsWith(const AttentionStep& step) const {
  return std::ranges::equal(rows_, step.past_length, {}, &Range::end);
}

}  // namespace ort_aie::npu_target
