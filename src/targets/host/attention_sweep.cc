// The online softmax over chunks of keys, in one of three ways:
//
// - few rows (decoding, drafted tokens): float32 dot products straight from the cache;
// - many rows of a prompt on a cache of 16 bits or less, if the CPU has bfloat16 dot products: both
//   products in bfloat16, as on the NPU. A float32 cache or an attribute selects float32 instead,
//   and for one token memory is the limit;
// - many rows otherwise: float32, from a widened copy of the chunk with transposed keys.
//
// A chunk is converted once for all rows of a tile. The rows then pass in blocks, whose scores stay
// in L1 from one product to the other.
#include "targets/host/attention_sweep.h"

#include <algorithm>

#include "q4nx/layout.h"
#include "targets/host/scratch.h"

namespace ort_aie::host {
namespace {

using q4nx::CeilDiv;

// From so many rows of a call (positions x group) on, converting a chunk pays. The rows of the call
// count, not those of the tile, so that all rows of a prompt are computed in the same way; in calls
// of few positions, those of one.
constexpr int64_t kManyQueries = 16;
constexpr int64_t kRowBlock = 24;  // float32 kernels: a multiple of the rows in registers

CacheType CacheTypeOf(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return kCacheFloat16;
    case DataType::kBfloat16:
      return kCacheBfloat16;
    case DataType::kInt8:
      return kCacheInt8;
    case DataType::kInt4:
      return kCacheInt4;
    default:
      return kCacheFloat32;
  }
}

// Null if this type of cache uses float32.
const Bf16Attention* Bf16Kernels(const Kernels& kernels, CacheType cache) {
  const Bf16Attention* bf16 = kernels.bf16_attention;
  return bf16 != nullptr && bf16->pack_keys[cache] != nullptr ? bf16 : nullptr;
}

class KeySweep {
 public:
  KeySweep(const AttentionStep& step, const Kernels& kernels, const QueryTile& tile,
           const SweepState& state)
      : step_(step),
        kernels_(kernels),
        tile_(tile),
        state_(state),
        cache_(CacheTypeOf(step.cache_type)),
        dim_(step.dim),
        group_(step.heads / step.kv_heads),
        rows_(tile.positions * group_),
        positions_(AsSingleTokens(step) ? 1 : step.sequence),
        many_(positions_ * group_ >= kManyQueries),
        bf16_(many_ && positions_ > 1 && !step.float32_products ? Bf16Kernels(kernels, cache_)
                                                                : nullptr),
        row_block_(bf16_ != nullptr ? bf16_->row_block : kRowBlock) {
    std::fill(state.max, state.max + rows_, kMinusInfinity);
    std::fill(state.sum, state.sum + rows_, 0.0f);
    std::fill(state.output, state.output + rows_ * dim_, 0.0f);
    scores_ = Scratch<float>(Purpose::kScores, row_block_ * (2 * kChunk + 1));
    correction_ = scores_ + row_block_ * kChunk;
    if (bf16_ != nullptr) {
      numerators_ = reinterpret_cast<uint16_t*>(correction_ + row_block_);
      auto* rounded = Scratch<uint16_t>(Purpose::kPanel, rows_ * dim_);
      kernels_.float_to_bfloat16(tile.queries, rows_ * dim_, rounded);
      queries_ = rounded;
    }
  }

  // Keys and values [position, position + keys); `next` are the keys that this thread reads next.
  void Chunk(const void* k, const void* v, int64_t position, int64_t keys, const void* next) {
    next_ = next;
    if (bf16_ != nullptr) {
      PackChunk(k, v, keys);
    } else if (many_) {
      WidenChunk(k, v, keys);
    } else {
      keys_ = k;
      values_ = v;
    }
    for (int64_t r = 0; r < rows_; r += row_block_) {
      const int64_t rows = std::min(row_block_, rows_ - r);
      const Range first = Visible(step_, tile_.b, Position(r));
      const Range last = Visible(step_, tile_.b, Position(r + rows - 1));
      if (last.end <= position || first.first >= position + keys) continue;
      const int64_t seen = std::min(keys, last.end - position);
      const bool whole = last.first <= position && first.end >= position + seen;
      Block(r, rows, position, seen, whole);
    }
  }

 private:
  int64_t Position(int64_t row) const { return tile_.t0 + row / group_; }

  void PackChunk(const void* k, const void* v, int64_t keys) {
    auto* panels = Scratch<uint16_t>(Purpose::kKeys, kChunk * dim_);
    auto* pairs = Scratch<uint16_t>(Purpose::kValues, kChunk * dim_);
    bf16_->pack_keys[cache_](k, keys, dim_, panels);
    bf16_->pack_values[cache_](v, keys, dim_, pairs);
    keys_ = panels;
    values_ = pairs;
  }

  void WidenChunk(const void* k, const void* v, int64_t keys) {
    auto* transposed = Scratch<float>(Purpose::kPanel, kChunk * dim_);
    kernels_.transpose_keys(AsFloat(Purpose::kKeys, k, keys), keys, dim_, transposed);
    keys_ = transposed;
    values_ = AsFloat(Purpose::kValues, v, keys);
  }

  const float* AsFloat(Purpose purpose, const void* rows, int64_t keys) const {
    if (cache_ == kCacheFloat32) return static_cast<const float*>(rows);
    float* x = Scratch<float>(purpose, kChunk * dim_);
    ToFloat(kernels_, step_.cache_type, rows, keys * dim_, x);
    return x;
  }

  // Equations 5 to 10 for rows [r, r + rows) of the tile; `whole` means that every row sees every
  // key.
  void Block(int64_t r, int64_t rows, int64_t position, int64_t keys, bool whole) {
    const float* q = tile_.queries + r * dim_;
    float *max = state_.max + r, *sum = state_.sum + r, *y = state_.output + r * dim_;
    if (bf16_ != nullptr) {
      bf16_->scores(queries_ + r * dim_, rows, dim_, static_cast<const uint16_t*>(keys_), keys,
                    step_.scale, scores_);
    } else if (many_) {
      kernels_.scores_transposed(q, rows, dim_, static_cast<const float*>(keys_), keys, step_.scale,
                                 scores_);
    } else {
      kernels_.scores[cache_](q, rows, dim_, keys_, keys, step_.scale, values_, scores_);
    }
    CapAndMask(r, rows, position, keys, whole);
    if (bf16_ != nullptr) {
      bf16_->softmax(scores_, rows, keys, max, sum, correction_, numerators_);
      bf16_->accumulate(numerators_, rows, static_cast<const uint16_t*>(values_), keys, dim_,
                        correction_, y);
    } else {
      kernels_.softmax(scores_, rows, keys, max, sum, correction_);
      kernels_.accumulate[many_ ? kCacheFloat32 : cache_](scores_, rows, values_, keys, dim_,
                                                          correction_, next_, y);
    }
  }

  // Applies soft cap and bias, and sets keys that a row does not see to -infinity, up to a whole
  // vector.
  void CapAndMask(int64_t r, int64_t rows, int64_t position, int64_t keys, bool whole) {
    const int64_t padded = CeilDiv(keys, kScoreLanes) * kScoreLanes;
    if (whole && keys == padded && step_.softcap <= 0 && step_.bias == nullptr &&
        step_.key_mask == nullptr) {
      return;
    }
    for (int64_t i = 0; i < rows; ++i) {
      float* s = scores_ + i * kChunk;
      const int64_t t = Position(r + i);
      if (step_.softcap > 0) kernels_.softcap(s, keys, step_.softcap);
      if (step_.bias != nullptr) AddBias(t, (r + i) % group_, position, keys, s);
      if (step_.key_mask != nullptr) HideKeys(position, keys, s);
      const Range visible = Visible(step_, tile_.b, t);
      const int64_t first = std::clamp<int64_t>(visible.first - position, 0, keys);
      const int64_t end = std::clamp<int64_t>(visible.end - position, first, keys);
      std::fill(s, s + first, kMinusInfinity);
      std::fill(s + end, s + padded, kMinusInfinity);
    }
  }

  void AddBias(int64_t t, int64_t head_of_group, int64_t position, int64_t keys, float* s) {
    const int64_t head = tile_.kv_head * group_ + head_of_group;
    const void* row = Advance(step_.bias, step_.type,
                              tile_.b * step_.bias_batch_stride + head * step_.bias_head_stride +
                                  t * step_.bias_row_stride + position);
    float bias[kChunk];
    ToFloat(kernels_, step_.type, row, keys, bias);
    // A hidden key is hidden even if its score is NaN; with a sum it would stay NaN.
    for (int64_t j = 0; j < keys; ++j) {
      s[j] = bias[j] == kMinusInfinity ? kMinusInfinity : s[j] + bias[j];
    }
  }

  void HideKeys(int64_t position, int64_t keys, float* s) const {
    const int64_t* mask = step_.key_mask + tile_.b * step_.key_mask_stride + position;
    for (int64_t j = 0; j < keys; ++j) s[j] = mask[j] != 0 ? s[j] : kMinusInfinity;
  }

  const AttentionStep& step_;
  const Kernels& kernels_;
  const QueryTile& tile_;
  const SweepState& state_;
  const CacheType cache_;
  const int64_t dim_, group_, rows_;
  const int64_t positions_;  // of which all rows are computed in the same way
  const bool many_;
  const Bf16Attention* const bf16_;  // null: use float32
  const int64_t row_block_;
  const void *keys_ = nullptr, *values_ = nullptr;  // of the chunk, in the kernels' layout
  const void* next_ = nullptr;
  const uint16_t* queries_ = nullptr;  // rounded to bfloat16
  float *scores_, *correction_;        // for a block of rows
  uint16_t* numerators_ = nullptr;
};

}  // namespace

Range Visible(const AttentionStep& step, int64_t b, int64_t t) {
  const auto i = static_cast<size_t>(b);
  const int64_t position = step.past_length[i] + t, total = step.total_length[i];
  int64_t end = step.causal ? std::min(position + 1, total) : total;
  int64_t first = step.window > 0 ? std::max<int64_t>(0, position - step.window + 1) : 0;
  if (!step.visible_keys.empty()) {
    first = std::max(first, step.visible_keys[i].first);
    end = std::min(end, step.visible_keys[i].end);
  }
  return {first, std::max(first, end)};
}

void SweepKeys(const AttentionStep& step, const Kernels& kernels, const QueryTile& tile,
               std::span<const KeySegment> segments, Range range, const SweepState& state,
               const void* next) {
  KeySweep sweep(step, kernels, tile, state);
  for (const KeySegment& segment : segments) {
    const int64_t begin = std::max(range.first, segment.first);
    const int64_t end = std::min(range.end, segment.first + segment.count);
    const auto of = [&](const void* rows, int64_t position) {
      return Advance(rows, step.cache_type, segment.At(tile.kv_head, position, step.dim));
    };
    for (int64_t position = begin; position < end; position += kChunk) {
      const int64_t after = position + kChunk;
      sweep.Chunk(of(segment.keys, position), of(segment.values, position), position,
                  std::min(kChunk, end - position), after < end ? of(segment.keys, after) : next);
    }
  }
}

}  // namespace ort_aie::host
