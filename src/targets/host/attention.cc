// FlowKV (one query row) and FlowQKV (more): chunked online softmax over the KV cache. This file
// prepares the queries, maintains the cache and divides the work; attention_sweep.cc computes the
// softmax. Equations are those of *Efficient LLM Decoding on Ryzen AI NPUs*, section III-B.
//
// A work item is (batch row, KV head, query tile, key range). One long sequence with few heads is
// split along the keys as well. The partial results are merged at the end with the same correction
// factors that the chunks use (equations 8 to 10).
#include <algorithm>
#include <cmath>
#include <cstring>

#include "q4nx/layout.h"
#include "targets/host/attention_inputs.h"
#include "targets/host/attention_sweep.h"
#include "targets/host/host_target.h"
#include "targets/host/scratch.h"
#include "targets/host/work.h"

namespace ort_aie::host {
namespace {

using q4nx::CeilDiv;

// Rows of a query tile, group x positions. These are enough that converting a chunk of the cache
// costs little compared with its products, and the blocks of rows for groups of 1 to 6, 8, 10 and
// 12 leave no remainder.
constexpr int64_t kTileRows = 240;
// Fewer keys are not worth a task of their own, unless few KV heads leave threads without work.
constexpr int64_t kSplitKeys = 512, kFewHeads = 4;

class Attention {
 public:
  Attention(const AttentionStep& step, const Kernels& kernels, const ThreadPool& threads)
      : step_(step),
        kernels_(kernels),
        threads_(threads),
        group_(step.heads / step.kv_heads),
        tile_positions_(AsSingleTokens(step) ? 1 : std::max<int64_t>(1, kTileRows / group_)),
        own_rows_(!step.windowed_cache && step.sequence == 1 && step.key_sequence == 1 &&
                  step.unread == 0),
        chunk_{0, step.unread} {}

  void Run() {
    if (own_rows_) {
      CarryPast(step_, threads_);
    } else if (!step_.windowed_cache) {
      WritePresent(step_, kernels_, threads_);
    }
    const int64_t most = ChunkTokens(step_.prompt_chunk, step_.batch, tile_positions_);
    do {
      chunk_ = {chunk_.end, std::min(chunk_.end + most, step_.sequence)};
      if (step_.windowed_cache) TakeNewRows();
      if (step_.sequence > kFewPositions) PrepareQueries();
      Attend();
      if (step_.windowed_cache) ShiftWindow(step_, threads_, chunk_, new_keys_, new_values_);
    } while (chunk_.end < step_.sequence);
  }

 private:
  int64_t ChunkSize() const { return chunk_.end - chunk_.first; }

  // Keeps new rows outside of a windowed cache, because queries may need rows that it is about to
  // drop.
  void TakeNewRows() {
    const int64_t elements = step_.batch * step_.kv_heads * ChunkSize() * step_.dim;
    new_keys_ = Scratch<uint8_t>(Purpose::kNewRows, BytesOf(step_.cache_type, 2 * elements));
    new_values_ = Advance(new_keys_, step_.cache_type, elements);
    WriteNewRows(step_, kernels_, threads_, chunk_, new_keys_, new_values_);
  }

  // --- the cache ---

  int64_t CacheRows(int64_t total) const {
    return WindowedCacheRows(total, step_.present_capacity, step_.window);
  }

  // What a windowed cache held before the chunk: the previous chunk left it in the present.
  const void* Old(const void* past, const void* present) const {
    return chunk_.first == 0 ? past : present;
  }

  // Where the keys of batch row b are: one segment in the present, or the old rows of a windowed
  // cache and the new rows outside of it.
  size_t Segments(int64_t b, KeySegment segments[2]) const {
    const int64_t dim = step_.dim;
    const auto i = static_cast<size_t>(b);
    const int64_t head = b * step_.kv_heads;
    if (!step_.windowed_cache) {
      const int64_t stride = step_.present_capacity * dim;
      segments[0] = {Advance(step_.present_key, step_.cache_type, head * stride),
                     Advance(step_.present_value, step_.cache_type, head * stride), stride, 0,
                     step_.total_length[i]};
      return 1;
    }
    const int64_t old_stride = step_.present_capacity * dim, new_stride = ChunkSize() * dim;
    const int64_t before = TokensBefore(step_, i, chunk_.first), old_rows = CacheRows(before);
    const void* old_keys = Old(step_.past_key, step_.present_key);
    const void* old_values = Old(step_.past_value, step_.present_value);
    segments[0] = {Advance(old_keys, step_.cache_type, head * old_stride),
                   Advance(old_values, step_.cache_type, head * old_stride), old_stride,
                   before - old_rows, old_rows};
    segments[1] = {Advance(new_keys_, step_.cache_type, head * new_stride),
                   Advance(new_values_, step_.cache_type, head * new_stride), new_stride, before,
                   TokensBefore(step_, i, chunk_.end) - before};
    return 2;
  }

  // --- work items ---

  // Of a thread's first task; the others have been fetched by the task before.
  static void Prefetch(const void* keys) {
    constexpr int64_t kBytes = 4096;
    for (int64_t i = 0; keys != nullptr && i < kBytes; i += 64) {
      __builtin_prefetch(static_cast<const char*>(keys) + i);
    }
  }

  // queries_ (batch, kv_heads, chunk, group, dim): the rows of a tile are adjacent. A token after
  // the other, because of the pages of memory that a tile's queries are in.
  void PrepareQueries() {
    const int64_t dim = step_.dim, tokens = ChunkSize();
    queries_ = Scratch<float>(Purpose::kQueries, step_.batch * tokens * step_.heads * dim);
    ForEachToken(step_.batch, chunk_, threads_, PassNs(step_.heads * dim),
                 [&](int64_t b, int64_t t) {
                   for (int64_t h = 0; h < step_.kv_heads; ++h) {
                     const int64_t row = (b * step_.kv_heads + h) * tokens + t - chunk_.first;
                     LoadGroup(b, h, t, queries_ + row * group_ * dim);
                   }
                 });
  }

  void LoadGroup(int64_t b, int64_t kv_head, int64_t t, float* queries) const {
    for (int64_t i = 0; i < group_; ++i) {
      LoadQuery(step_, kernels_, b * step_.sequence + t, kv_head * group_ + i,
                queries + i * step_.dim);
    }
  }

  const float* QueriesOf(const QueryTile& tile) const {
    const int64_t row = group_ * step_.dim;
    if (queries_ != nullptr) {
      const int64_t head = tile.b * step_.kv_heads + tile.kv_head;
      return queries_ + (head * ChunkSize() + tile.t0 - chunk_.first) * row;
    }
    float* queries = Scratch<float>(Purpose::kQueries, tile.positions * row);
    for (int64_t i = 0; i < tile.positions; ++i) {
      LoadGroup(tile.b, tile.kv_head, tile.t0 + i, queries + i * row);
    }
    return queries;
  }

  Range KeysOf(const QueryTile& tile) const {
    return {Visible(step_, tile.b, tile.t0).first,
            Visible(step_, tile.b, tile.t0 + tile.positions - 1).end};
  }

  // By a tile's own keys, so that a batch row's result does not depend on how long the others are.
  int64_t SplitsOf(int64_t keys) const {
    if (step_.sequence > kFewPositions) return 1;
    return std::max<int64_t>(1, keys / (step_.kv_heads < kFewHeads ? kChunk : kSplitKeys));
  }

  void Attend() {
    const int64_t longest = *std::max_element(step_.total_length.begin(), step_.total_length.end());
    const int64_t swept =
        step_.window > 0 ? std::min(longest, step_.window + step_.sequence - 1) : longest;
    const int64_t splits = SplitsOf(swept);  // the most of any tile
    const int64_t tiles = CeilDiv(ChunkSize(), tile_positions_);
    const int64_t items = step_.batch * step_.kv_heads * tiles;
    const int64_t most_rows = std::min(ChunkSize(), tile_positions_) * group_;
    const int64_t state = most_rows * (step_.dim + 2);
    float* partials =
        splits > 1 ? Scratch<float>(Purpose::kPartials, items * splits * state) : nullptr;
    const auto carve = [&](float* memory, int64_t rows) {
      return SweepState{memory, memory + rows, memory + 2 * rows};
    };

    const auto tile_of = [&](int64_t item) {
      const int64_t head = item / tiles, t0 = chunk_.first + item % tiles * tile_positions_;
      const int64_t b = head / step_.kv_heads, kv_head = head % step_.kv_heads;
      return QueryTile{b, kv_head, t0, std::min(tile_positions_, chunk_.end - t0)};
    };
    // The keys of a task, which may have none. Splits are whole chunks, so that results do not
    // depend on how the ends are aligned. The last split takes the remainder.
    const auto keys_of = [&](const QueryTile& tile, int64_t split) {
      const Range whole = KeysOf(tile);
      const int64_t own = SplitsOf(whole.end - whole.first);
      if (split >= own) return Range{whole.end, whole.end};
      const int64_t share = std::max(kChunk, (whole.end - whole.first) / own / kChunk * kChunk);
      const auto bound = [&](int64_t i) {
        return i == own ? whole.end : std::min(whole.end, whole.first + i * share);
      };
      return Range{bound(split), bound(split + 1)};
    };
    // Tiles that read the same keys follow one another.
    const auto item_of = [&](int64_t task) {
      return task / (tiles * splits) * tiles + task % tiles;
    };
    const auto split_of = [&](int64_t task) { return task / tiles % splits; };
    // The first keys of a task.
    const auto first_keys = [&](int64_t task) -> const void* {
      if (task == items * splits) return nullptr;
      const QueryTile tile = tile_of(item_of(task));
      KeySegment segments[2];
      Segments(tile.b, segments);
      const auto& [keys, values, stride, first, count] = segments[0];
      if (count == 0) return nullptr;
      const int64_t position =
          std::clamp(keys_of(tile, split_of(task)).first, first, first + count);
      return Advance(keys, step_.cache_type, segments[0].At(tile.kv_head, position, step_.dim));
    };

    const int64_t products = 2 * most_rows * CeilDiv(swept, splits) * step_.dim;
    threads_.ParallelFor(items * splits, ProductsNs(products), [&](int64_t task) {
      const int64_t item = item_of(task), split = split_of(task);
      QueryTile tile = tile_of(item);
      const Range keys = keys_of(tile, split);
      if (split > 0 && keys.first == keys.end) return;
      Prefetch(first_keys(task));
      // The last split reads the new row.
      if (own_rows_ && keys.end == KeysOf(tile).end) {
        WritePresentRow(step_, kernels_, tile.b, tile.t0, tile.kv_head);
      }
      float* memory = splits > 1 ? partials + (item * splits + split) * state
                                 : Scratch<float>(Purpose::kTile, state);
      const SweepState sweep = carve(memory, tile.positions * group_);
      tile.queries = QueriesOf(tile);
      KeySegment segments[2];
      const size_t count = Segments(tile.b, segments);
      SweepKeys(step_, kernels_, tile, {segments, count}, keys, sweep, first_keys(task + 1));
      if (splits == 1) Finish(tile, sweep);
    });
    if (splits == 1) return;

    threads_.ParallelFor(items, PassNs(splits * state), [&](int64_t item) {
      const QueryTile tile = tile_of(item);
      const int64_t rows = tile.positions * group_;
      const SweepState total = carve(partials + item * splits * state, rows);
      const Range keys = KeysOf(tile);
      for (int64_t split = 1; split < SplitsOf(keys.end - keys.first); ++split) {
        Merge(carve(partials + (item * splits + split) * state, rows), rows, total);
      }
      Finish(tile, total);
    });
  }

  void Merge(const SweepState& part, int64_t rows, const SweepState& total) const {
    for (int64_t r = 0; r < rows; ++r) {
      // No key is visible. If scores are NaN, there is no maximum either, but there is a sum.
      if (part.max[r] == kMinusInfinity && part.sum[r] == 0.0f) continue;
      const float max = std::max(part.max[r], total.max[r]);
      const float keep = std::exp(total.max[r] - max), add = std::exp(part.max[r] - max);
      total.sum[r] = keep * total.sum[r] + add * part.sum[r];
      for (int64_t d = 0; d < step_.dim; ++d) {
        float& y = total.output[r * step_.dim + d];
        y = keep * y + add * part.output[r * step_.dim + d];
      }
      total.max[r] = max;
    }
  }

  // Equation 11, with the sink's share of the denominator.
  void Finish(const QueryTile& tile, const SweepState& sweep) const {
    const int64_t dim = step_.dim;
    for (int64_t r = 0; r < tile.positions * group_; ++r) {
      const int64_t head = tile.kv_head * group_ + r % group_;
      float sum = sweep.sum[r], scale = 1.0f;
      if (step_.head_sink != nullptr || step_.smooth_softmax) {
        float sink = 0.0f;
        if (step_.head_sink != nullptr) {
          ToFloat(kernels_, step_.type, Advance(step_.head_sink, step_.type, head), 1, &sink);
        }
        // The sink is one more score in the softmax, without a value.
        const float max = std::max(sink, sweep.max[r]);
        scale = sweep.max[r] == kMinusInfinity ? 0.0f : std::exp(sweep.max[r] - max);
        sum = scale * sum + std::exp(sink - max);
      }
      const float factor = sum == 0.0f ? 0.0f : scale / sum;
      float* y = sweep.output + r * dim;
      kernels_.multiply_value(y, factor, dim, y);
      if (step_.value_scales) Scale(kernels_, step_.value_scales, tile.kv_head, dim, y);
      const int64_t token = tile.b * step_.sequence + tile.t0 + r / group_;
      FromFloat(kernels_, step_.type, y, dim,
                Advance(step_.output, step_.type, (token * step_.heads + head) * dim));
    }
  }

  const AttentionStep& step_;
  const Kernels& kernels_;
  const ThreadPool& threads_;
  const int64_t group_;  // query heads per KV head
  const int64_t tile_positions_;
  const bool own_rows_;  // of one token: the task of a KV head writes the new row that it reads
  // The positions of each batch row that are computed now, so that scratch memory does not grow
  // with the prompt. Keys and values of a cache without a window are in place before the first
  // chunk, or each row before the task that reads it.
  Range chunk_;
  float* queries_ = nullptr;  // null: each task loads those of its tile
  void *new_keys_ = nullptr, *new_values_ = nullptr;
};

}  // namespace

void RunAttention(const AttentionStep& step, const Kernels& kernels, const ThreadPool& threads) {
  Attention(step, kernels, threads).Run();
}

}  // namespace ort_aie::host
