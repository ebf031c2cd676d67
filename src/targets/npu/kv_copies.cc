#include "targets/npu/kv_copies.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "targets/npu/conversions.h"

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kEight = 8;              // keys, and dimensions, that stand together
constexpr int64_t kCapacityMultiple = 64;  // 4,096 elements for each head dimension
constexpr int64_t kLeastCapacity = 256;

}  // namespace

KvCopy::KvCopy(Engine& engine, const AttentionStep& step)
    : engine_(engine),
      generation_(engine.generation()),
      batch_(step.batch),
      kv_heads_(step.kv_heads),
      dim_(step.dim),
      padded_(PaddedHeadDim(step.dim)),
      type_(step.cache_type),
      rows_(static_cast<size_t>(step.batch), 0) {}

bool KvCopy::Fits(const AttentionStep& step) const {
  return batch_ == step.batch && kv_heads_ == step.kv_heads && dim_ == step.dim &&
         type_ == step.cache_type;
}

bool KvCopy::Has(const AttentionStep& step, Rows rows) const {
  const auto has = [&](int64_t have, int64_t past) {
    return rows == Rows::kExactly ? have == past : have >= past;
  };
  return std::ranges::equal(rows_, step.past_length, has);
}

const uint8_t* KvCopy::Truth(const AttentionStep& step, bool values, int64_t head) const {
  return static_cast<const uint8_t*>(host::Advance(values ? step.present_value : step.present_key,
                                                   type_, head * step.present_capacity * dim_));
}

int64_t KvCopy::ShadowOffset(bool values, int64_t head) const {
  const int64_t heads = batch_ * kv_heads_;
  return ((values ? heads : 0) + head) * capacity_ * dim_ * static_cast<int64_t>(SizeOf(type_));
}

bool KvCopy::PastIsEqual(const AttentionStep& step, const ThreadPool& threads) const {
  const Timed timed(engine_, "compare cache");
  const auto row_bytes = dim_ * static_cast<int64_t>(SizeOf(type_));
  const auto equal = [&](bool values, int64_t head, int64_t first, int64_t count) {
    const int64_t offset = first * row_bytes;
    return std::memcmp(Truth(step, values, head) + offset,
                       shadow_.data() + ShadowOffset(values, head) + offset,
                       static_cast<size_t>(count * row_bytes)) == 0;
  };
  const int64_t heads = batch_ * kv_heads_;
  int64_t compared = 0;
  std::atomic<bool> same = true;
  // Another's copy differs in the newest row at the latest; that one first.
  for (int64_t head = 0; head < heads && same; head += kv_heads_) {
    const int64_t past = step.past_length[static_cast<size_t>(head / kv_heads_)];
    if (past > 0) same = equal(false, head, past - 1, 1);
  }
  if (same) {
    threads.ParallelFor(2 * heads, [&](int64_t i) {
      const int64_t head = i % heads;
      const int64_t past = step.past_length[static_cast<size_t>(head / kv_heads_)];
      if (same && past > 0 && !equal(i >= heads, head, 0, past)) same = false;
    });
    for (const int64_t past : step.past_length) compared += 2 * past * kv_heads_ * row_bytes;
  }
  engine_.Count([&](ExecutorCounters& counters) {
    counters.cache_bytes_compared += compared;
    counters.compare_seconds += timed.seconds();
  });
  return same;
}

// Room for the step's rows, and for some more: a larger copy is sent as a whole.
void KvCopy::Grow(const AttentionStep& step) {
  const int64_t longest = *std::ranges::max_element(step.total_length);
  if (longest <= capacity_) return;
  int64_t capacity = std::max(
      kLeastCapacity, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(longest + 1))));
  if (step.present_capacity > longest) {  // a cache of a size that was settled before
    capacity = std::min(capacity, RoundUp(step.present_capacity, kCapacityMultiple));
  }
  Forget();
  buffer_.reset();
  capacity_ = 0;
  const auto heads = 2 * batch_ * kv_heads_;
  buffer_ = engine_.device().Allocate(static_cast<size_t>(heads * capacity * padded_ * 2));
  std::memset(buffer_->host(), 0, buffer_->size());
  buffer_->ToDevice(0, buffer_->size());
  shadow_.resize(static_cast<size_t>(heads * capacity * dim_) * SizeOf(type_));
  capacity_ = capacity;
}

// Rows [from, to) of a head, and zeros up to a multiple of eight: in the shadow, and on the host's
// side of the buffer.
void KvCopy::Convert(const AttentionStep& step, bool values, int64_t head, int64_t from,
                     int64_t to) {
  const auto row_bytes = dim_ * static_cast<int64_t>(SizeOf(type_));
  const uint8_t* truth = Truth(step, values, head);
  std::memcpy(shadow_.data() + ShadowOffset(values, head) + from * row_bytes,
              truth + from * row_bytes, static_cast<size_t>((to - from) * row_bytes));
  uint8_t* first = buffer_->host() + (values ? ValueOffset(0) : KeyOffset(0)) + head * HeadBytes();
  auto* tiles = reinterpret_cast<uint16_t*>(first);
  auto* row = host::Scratch<uint16_t>(host::Purpose::kKeys, dim_);
  for (int64_t key = from; key < RoundUp(to, kEight); ++key) {
    if (key < to) {
      ToBfloat16(engine_.kernels(), type_, truth + key * row_bytes, dim_, row);
    } else {
      std::fill_n(row, dim_, uint16_t{0});
    }
    uint16_t* y = tiles + key / kEight * kEight * padded_ + key % kEight * kEight;
    for (int64_t d = 0; d < dim_; d += kEight) std::memcpy(y + d * kEight, row + d, 2 * kEight);
  }
}

void KvCopy::Update(const AttentionStep& step, std::span<const int64_t> rows,
                    const ThreadPool& threads) {
  Grow(step);
  const Timed timed(engine_, "send cache");
  present_ = step.present_key;
  const auto from = [&](size_t b) { return std::min(rows_[b], step.past_length[b]); };
  const int64_t heads = batch_ * kv_heads_;
  threads.ParallelFor(2 * heads, [&](int64_t i) {
    const auto b = static_cast<size_t>(i % heads / kv_heads_);
    if (from(b) < rows[b]) Convert(step, i >= heads, i % heads, from(b), rows[b]);
  });
  int64_t kept = 0, sent = 0;
  for (int64_t i = 0; i < 2 * heads; ++i) {
    const auto b = static_cast<size_t>(i % heads / kv_heads_);
    kept += from(b);
    if (from(b) == rows[b]) continue;
    sent += rows[b] - from(b);
    const int64_t first = from(b) / kEight * kEight, end = RoundUp(rows[b], kEight);
    const int64_t start = (i >= heads ? ValueOffset(0) : KeyOffset(0)) + i % heads * HeadBytes();
    buffer_->ToDevice(static_cast<size_t>(start + first * padded_ * 2),
                      static_cast<size_t>((end - first) * padded_ * 2));
  }
  rows_.assign(rows.begin(), rows.end());
  engine_.Count([&](ExecutorCounters& counters) {
    counters.cache_rows_kept += kept;
    counters.cache_rows_sent += sent;
  });
}

void KvCopy::Appended(const AttentionStep& step) {
  for (int64_t head = 0; head < batch_ * kv_heads_; ++head) {
    const auto b = static_cast<size_t>(head / kv_heads_);
    for (const bool values : {false, true}) {
      Convert(step, values, head, step.past_length[b], step.total_length[b]);
    }
  }
  rows_.assign(step.total_length.begin(), step.total_length.end());
}

std::unique_ptr<KvCopy> KvCopies::Choose(const AttentionStep& step, const ThreadPool& threads) {
  const auto extract = [&](auto place) {
    std::unique_ptr<KvCopy> copy = std::move(*place);
    copies_.erase(place);
    return copy;
  };
  if (std::ranges::any_of(step.past_length, [](int64_t past) { return past > 0; })) {
    // One that has more rows was rewound, or belongs to another who began the same way.
    for (const KvCopy::Rows rows : {KvCopy::Rows::kExactly, KvCopy::Rows::kMore}) {
      for (auto copy = copies_.begin(); copy != copies_.end(); ++copy) {
        if ((*copy)->Fits(step) && (*copy)->Has(step, rows) &&
            (*copy)->PastIsEqual(step, threads)) {
          return extract(copy);
        }
      }
    }
  }
  // Of a cache that stays in one place: what was copied from this very memory has been overwritten.
  const bool in_place = step.past_key == step.present_key;
  for (auto copy = copies_.begin(); copy != copies_.end(); ++copy) {
    if (in_place && (*copy)->present() == step.present_key && (*copy)->Fits(step)) {
      auto chosen = extract(copy);
      chosen->Forget();
      return chosen;
    }
  }
  if (copies_.size() < kMost) return nullptr;
  auto oldest = extract(std::prev(copies_.end()));
  if (!oldest->Fits(step)) return nullptr;
  oldest->Forget();
  return oldest;
}

std::unique_ptr<KvCopy> KvCopies::Take(Engine& engine, const AttentionStep& step,
                                       std::span<const int64_t> rows, const ThreadPool& threads) {
  std::unique_ptr<KvCopy> copy;
  {
    const std::lock_guard lock(mutex_);
    if (generation_ != engine.generation()) {
      copies_.clear();
      generation_ = engine.generation();
    }
    copy = Choose(step, threads);
  }
  if (copy == nullptr) copy = std::make_unique<KvCopy>(engine, step);
  copy->Update(step, rows, threads);
  return copy;
}

void KvCopies::PutBack(Engine& engine, std::unique_ptr<KvCopy> copy) {
  const std::lock_guard lock(mutex_);
  if (generation_ != engine.generation() || generation_ != copy->generation()) return;
  copies_.push_front(std::move(copy));
  if (copies_.size() > kMost) copies_.pop_back();
}

}  // namespace ort_aie::npu_target
