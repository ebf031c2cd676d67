#include "targets/npu/kv_copies.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "targets/host/work.h"
#include "targets/npu/conversions.h"

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kEight = 8;  // keys, and dimensions, that are adjacent

// The token whose row is the first one of the step's past tensors.
int64_t FirstOfPast(const AttentionStep& step, size_t b) {
  const int64_t past = step.past_length[b];
  return step.windowed_cache ? past - WindowedCacheRows(past, step.past_capacity, step.window) : 0;
}

}  // namespace

void KvCopy::Place(std::shared_ptr<Buffer> buffer, int64_t offset, int64_t capacity) {
  CacheRows::Place(std::move(buffer), offset, capacity);
  marks_.assign(static_cast<size_t>(2 * heads() * capacity), RowMark{});
}

bool KvCopy::IsEqual(const AttentionStep& step, int64_t head, Range tokens) const {
  const size_t b = BatchRow(head);
  const int64_t bytes = ort_aie::BytesOf(type_, dim_);
  const auto* truth =
      static_cast<const uint8_t*>(head >= heads() ? step.past_value : step.past_key) +
      (head % heads() * step.past_capacity - FirstOfPast(step, b)) * bytes;
  const RowMark* marks = marks_.data() + head * capacity_ - rows_[b].first;
  const auto differs = [&](int64_t token) {
    return MarkOf(truth + token * bytes, bytes) != marks[token];
  };
  // Another sequence's copy differs in the newest row, if not earlier, so that row is compared
  // first.
  if (differs(tokens.end - 1)) return false;
  for (int64_t token = tokens.first; token < tokens.end - 1; ++token) {
    if (differs(token)) return false;
  }
  return true;
}

bool KvCopy::PastIsEqual(const AttentionStep& step, const ThreadPool& threads) const {
  const TraceSpan traced("host", "compare cache");
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<bool> same = true;
  std::atomic<int64_t> compared = 0;
  threads.ParallelFor(2 * heads(), [&](int64_t head) {
    const Range tokens = Useful(step, BatchRow(head));
    if (!same || tokens.end <= tokens.first) return;
    if (!IsEqual(step, head, tokens)) same = false;
    compared += (tokens.end - tokens.first) * ort_aie::BytesOf(type_, dim_);
  });
  engine_.Count([&](ExecutorCounters& counters) {
    counters.cache_bytes_compared += compared;
    counters.compare_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  });
  return same;
}

void KvCopy::Keep(const AttentionStep& step, bool known, const ThreadPool& threads) {
  present_ = step.present_key;
  const bool all = known || Held(step) == 0 || PastIsEqual(step, threads);
  for (size_t b = 0; b < rows_.size(); ++b) {
    const Range useful = Useful(step, b);
    if (useful.first == useful.end) {
      rows_[b] = {useful.first, useful.first};
      continue;
    }
    bool same = true;
    const auto first = static_cast<int64_t>(b) * kv_heads_;
    for (int64_t i = 0; i < kv_heads_ && same && !all; ++i) {
      same = IsEqual(step, first + i, useful) && IsEqual(step, heads() + first + i, useful);
    }
    rows_[b] = same ? Range{rows_[b].first, useful.end} : Range{useful.first, useful.first};
  }
}

// Moves a batch row's tokens from `first` on to row 0, in the host's part.
void KvCopy::MoveTo(size_t b, int64_t first) {
  const int64_t by = first - rows_[b].first;
  const int64_t count = std::max<int64_t>(0, rows_[b].end - first);
  const auto place = [&](uint16_t* tiles, int64_t row) {
    return tiles + row / kEight * kEight * padded_ + row % kEight * kEight;
  };
  for (int64_t i = 0; i < 2 * kv_heads_; ++i) {
    const int64_t head =
        i / kv_heads_ * heads() + static_cast<int64_t>(b) * kv_heads_ + i % kv_heads_;
    auto* tiles = reinterpret_cast<uint16_t*>(HostSide(head));
    for (int64_t row = 0; row < count; ++row) {
      const uint16_t* from = place(tiles, row + by);
      uint16_t* to = place(tiles, row);
      for (int64_t d = 0; d < padded_; d += kEight) {
        std::memcpy(to + d * kEight, from + d * kEight, 2 * kEight);
      }
    }
    RowMark* marks = marks_.data() + head * capacity_;
    std::copy_n(marks + by, count, marks);
  }
  rows_[b] = {first, first + count};
}

// Converts tokens of a head, and zeros up to a multiple of eight rows, in the host's part of the
// buffer; sets their marks.
void KvCopy::Convert(const AttentionStep& step, int64_t head, Range tokens, const HostRows& fresh) {
  const size_t b = BatchRow(head);
  const bool values = head >= heads();
  const int64_t bytes = ort_aie::BytesOf(type_, dim_), past = step.past_length[b];
  const auto truth = [&](int64_t token) {
    const bool old = token < past;
    const void* rows =
        old ? (values ? step.past_value : step.past_key) : (values ? fresh.values : fresh.keys);
    const int64_t capacity = old ? step.past_capacity : fresh.capacity;
    const int64_t first = old ? FirstOfPast(step, b) : fresh.first[b];
    return static_cast<const uint8_t*>(rows) + (head % heads() * capacity + token - first) * bytes;
  };
  auto* tiles = reinterpret_cast<uint16_t*>(HostSide(head));
  auto* x = host::Scratch<uint16_t>(host::Purpose::kKeys, dim_);
  const int64_t begin = tokens.first - rows_[b].first, end = tokens.end - rows_[b].first;
  for (int64_t row = begin; row < RoundUp(end, kEight); ++row) {
    if (row < end) {
      const uint8_t* from = truth(rows_[b].first + row);
      marks_[static_cast<size_t>(head * capacity_ + row)] = MarkOf(from, bytes);
      ToBfloat16(engine_.kernels(), type_, from, dim_, x);
    } else {
      std::fill_n(x, dim_, uint16_t{0});
    }
    uint16_t* y = tiles + row / kEight * kEight * padded_ + row % kEight * kEight;
    for (int64_t d = 0; d < dim_; d += kEight) std::memcpy(y + d * kEight, x + d, 2 * kEight);
  }
}

void KvCopy::Hold(const AttentionStep& step, const Lengths& lengths, std::span<const int64_t> rows,
                  const HostRows& fresh, const ThreadPool& threads) {
  const TraceSpan traced("host", "send cache");
  std::vector<int64_t> from(rows_.size());  // tokens
  for (size_t b = 0; b < rows_.size(); ++b) {
    const int64_t first = FirstTokenFor(step, b, lengths);
    from[b] = rows_[b].end;
    if (first == rows_[b].first) continue;
    MoveTo(b, first);
    from[b] = first;
  }
  threads.ParallelFor(2 * heads(), [&](int64_t head) {
    const size_t b = BatchRow(head);
    if (rows_[b].end < rows[b]) Convert(step, head, {rows_[b].end, rows[b]}, fresh);
  });
  int64_t kept = 0, sent = 0;
  for (int64_t head = 0; head < 2 * heads(); ++head) {
    const size_t b = BatchRow(head);
    const int64_t end = std::max(rows_[b].end, rows[b]), zero = rows_[b].first;
    kept += from[b] - zero;
    if (from[b] >= end) continue;
    sent += end - from[b];
    const int64_t first_row = (from[b] - zero) / kEight * kEight;
    const int64_t row_bytes = padded_ * 2;
    buffer_->ToDevice(static_cast<size_t>(offset_ + head * HeadBytes() + first_row * row_bytes),
                      static_cast<size_t>((RoundUp(end - zero, kEight) - first_row) * row_bytes));
  }
  Advance(step, lengths, rows);
  engine_.Count([&](ExecutorCounters& counters) {
    counters.cache_rows_kept += kept;
    counters.cache_rows_sent += sent;
  });
}

void KvCopy::FetchNew(const AttentionStep& step) {
  const int64_t row_bytes = padded_ * 2;
  for (int64_t head = 0; head < 2 * heads(); ++head) {
    const size_t b = BatchRow(head);
    const int64_t first = (step.past_length[b] - rows_[b].first) / kEight * kEight;
    const int64_t end = RoundUp(step.total_length[b] - rows_[b].first, kEight);
    buffer_->FromDevice(static_cast<size_t>(offset_ + head * HeadBytes() + first * row_bytes),
                        static_cast<size_t>((end - first) * row_bytes));
  }
}

void KvCopy::Row(int64_t head, int64_t token, uint16_t* y) const {
  const int64_t row = token - rows_[BatchRow(head)].first;
  const auto* tiles = reinterpret_cast<const uint16_t*>(HostSide(head));
  const uint16_t* x = tiles + row / kEight * kEight * padded_ + row % kEight * kEight;
  for (int64_t d = 0; d < padded_; d += kEight) std::memcpy(y + d, x + d * kEight, 2 * kEight);
}

void KvCopy::Appended(const AttentionStep& step, const HostRows& fresh, const ThreadPool& threads) {
  threads.ParallelFor(2 * heads(), host::PassNs(step.sequence * dim_), [&](int64_t head) {
    const size_t b = BatchRow(head);
    Convert(step, head, {step.past_length[b], step.total_length[b]}, fresh);
  });
  for (size_t b = 0; b < rows_.size(); ++b) rows_[b].end = step.total_length[b];
}

KvSlab::KvSlab(Engine& engine, Steps steps) : engine_(engine), generation_(engine.generation()) {
  layers_.reserve(steps.size());
  for (const AttentionStep* step : steps) layers_.emplace_back(engine, *step);
}

bool KvSlab::Fits(Steps steps) const {
  return std::ranges::equal(layers_, steps, [](const KvCopy& layer, const AttentionStep* step) {
    return layer.Fits(*step);
  });
}

void KvSlab::Reserve(Steps steps, const Tokens& tokens) {
  std::vector<int64_t> capacities(steps.size());
  bool enough = true;
  for (size_t i = 0; i < steps.size(); ++i) {
    const int64_t at_a_time = tokens(*steps[i]);
    capacities[i] =
        at_a_time > 0 ? layers_[i].CapacityFor(*steps[i], at_a_time) : layers_[i].capacity();
    enough = enough && capacities[i] == layers_[i].capacity();
  }
  if (enough) return;
  for (KvCopy& layer : layers_) layer.Place(nullptr, 0, 0);  // free them before allocating
  for (size_t first = 0, end = 0; first < layers_.size(); first = end) {
    int64_t bytes = 0;
    std::vector<int64_t> offsets;
    for (; end < layers_.size(); ++end) {
      const int64_t more = layers_[end].BytesOf(capacities[end]);
      if (bytes > 0 && bytes + more > static_cast<int64_t>(kMaxBufferBytes)) break;
      offsets.push_back(bytes);
      bytes += more;
    }
    if (bytes == 0) continue;
    const std::shared_ptr<Buffer> buffer = engine_.device().Allocate(static_cast<size_t>(bytes));
    std::memset(buffer->host(), 0, buffer->size());
    buffer->ToDevice(0, buffer->size());
    for (size_t i = first; i < end; ++i) {
      layers_[i].Place(buffer, offsets[i - first], capacities[i]);
    }
  }
}

KvCopies::Taken KvCopies::Choose(KvSlab::Steps steps, size_t asked, const ThreadPool& threads) {
  const AttentionStep& step = *steps[asked];
  const auto extract = [&](auto place) {
    std::unique_ptr<KvSlab> slab = std::move(*place);
    slabs_.erase(place);
    return slab;
  };
  // Prefer a slab that ends with the past, then the one with most of it. A slab that goes on after
  // the past was rewound, or belongs to another sequence with the same beginning.
  using Place = decltype(slabs_)::iterator;
  std::vector<std::pair<std::pair<bool, int64_t>, Place>> candidates;
  for (auto slab = slabs_.begin(); slab != slabs_.end(); ++slab) {
    const KvCopy& layer = (*slab)->layer(asked);
    if (!(*slab)->Fits(steps) || layer.Held(step) == 0) continue;
    candidates.push_back({{layer.EndsWith(step), layer.Held(step)}, slab});
  }
  std::ranges::stable_sort(candidates, std::greater{}, [](const auto& c) { return c.first; });
  for (const auto& [rank, slab] : candidates) {
    if ((*slab)->layer(asked).PastIsEqual(step, threads)) return {extract(slab), true};
  }
  // A cache that stays in place has overwritten the memory from which this copy was made.
  const bool in_place = step.past_key == step.present_key;
  for (auto slab = slabs_.begin(); slab != slabs_.end(); ++slab) {
    if (in_place && (*slab)->Fits(steps) && (*slab)->layer(asked).present() == step.present_key) {
      return {extract(slab)};
    }
  }
  if (slabs_.size() < kMost) return {};
  Taken oldest{extract(std::prev(slabs_.end()))};
  return oldest.slab->Fits(steps) ? std::move(oldest) : Taken{};
}

KvCopies::Taken KvCopies::Take(Engine& engine, KvSlab::Steps steps, size_t asked,
                               const ThreadPool& threads) {
  Taken taken;
  {
    const std::lock_guard lock(mutex_);
    if (generation_ != engine.generation()) {
      slabs_.clear();
      generation_ = engine.generation();
    }
    taken = Choose(steps, asked, threads);
  }
  if (taken.slab == nullptr) taken.slab = std::make_unique<KvSlab>(engine, steps);
  return taken;
}

void KvCopies::PutBack(Engine& engine, std::unique_ptr<KvSlab> slab) {
  const std::lock_guard lock(mutex_);
  if (generation_ != engine.generation() || generation_ != slab->generation()) return;
  slabs_.push_front(std::move(slab));
  if (slabs_.size() > kMost) slabs_.pop_back();
}

}  // namespace ort_aie::npu_target
