#include "targets/host/attention_inputs.h"

#include <algorithm>
#include <cstring>

#include "targets/host/scratch.h"
#include "targets/host/work.h"

namespace ort_aie::host {
namespace {

// RMS norm of a head (dim), in place.
void Normalise(const AttentionStep& step, const Kernels& kernels, const void* norm, float* x) {
  if (norm == nullptr) return;
  float* weight = Scratch<float>(Purpose::kRow, step.dim);
  ToFloat(kernels, step.type, norm, step.dim, weight);
  kernels.rms_norm(weight, step.dim, step.norm_epsilon, x);
}

// A token's cosines or sines (half), each at the token's position on the axis of its pair.
void LoadMixed(const AttentionStep& step, const Kernels& kernels, const void* table, int64_t token,
               int64_t half, float* y) {
  float* row = Scratch<float>(Purpose::kSkip, half);
  for (int64_t axis = 0; axis < 3; ++axis) {
    const auto place = static_cast<size_t>(axis * step.batch * step.sequence + token);
    ToFloat(kernels, step.type, Advance(table, step.type, step.positions[place] * half), half, row);
    for (int64_t i = 0; i < half; ++i) {
      if (step.axes.Of(i, half) == axis) y[i] = row[i];
    }
  }
}

// Rotary embedding of a head (dim), in place.
void Rotate(const AttentionStep& step, const Kernels& kernels, int64_t token, float* x) {
  if (step.cos == nullptr) return;
  const int64_t half = step.rotary_dim / 2;
  float* cos = Scratch<float>(Purpose::kRow, 2 * half);
  float* sin = cos + half;
  if (step.mixed_positions) {
    LoadMixed(step, kernels, step.cos, token, half, cos);
    LoadMixed(step, kernels, step.sin, token, half, sin);
  } else {
    const int64_t position = step.positions[static_cast<size_t>(token)];
    ToFloat(kernels, step.type, Advance(step.cos, step.type, position * half), half, cos);
    ToFloat(kernels, step.type, Advance(step.sin, step.type, position * half), half, sin);
  }
  const auto rotate = [](auto& first, auto& second, const auto& c, const auto& s) {
    const auto a = first, b = second;
    first = a * c - b * s;
    second = b * c + a * s;
  };
  if (step.rotary_interleaved) {
    for (int64_t i = 0; i < half; ++i) rotate(x[2 * i], x[2 * i + 1], cos[i], sin[i]);
    return;
  }
  // Vectors of the baseline, which give the same bits: a token's rotations take as long as some of
  // the attention itself.
  typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));
  const auto four = [](float* from) -> Four& { return *reinterpret_cast<Four*>(from); };
  int64_t i = 0;
  for (; i + 4 <= half; i += 4) {
    rotate(four(x + i), four(x + half + i), four(cos + i), four(sin + i));
  }
  for (; i < half; ++i) rotate(x[i], x[half + i], cos[i], sin[i]);
}

// Norm and rotary embedding of a head of a query or key, in place.
void Transform(const AttentionStep& step, const Kernels& kernels, float* x, const void* norm,
               int64_t token) {
  if (!step.norm_after_rotary) Normalise(step, kernels, norm, x);
  Rotate(step, kernels, token, x);
  if (step.norm_after_rotary) Normalise(step, kernels, norm, x);
}

// Stores a row of the cache, in the cache's type.
void StoreRow(const AttentionStep& step, const Kernels& kernels, const CacheScales& scales,
              int64_t kv_head, const float* x, void* y) {
  const float* of_head = scales.OfHead(kv_head, step.dim);
  if (step.cache_type == DataType::kInt8) {
    kernels.float_to_int8(x, of_head, scales.per_channel, step.dim, static_cast<int8_t*>(y));
  } else if (step.cache_type == DataType::kInt4) {
    kernels.float_to_int4(x, of_head, scales.per_channel, step.dim, static_cast<uint8_t*>(y));
  } else {
    FromFloat(kernels, step.cache_type, x, step.dim, y);
  }
}

// Writes a token's key and value of a KV head at element `to` of keys and of values.
void WriteRow(const AttentionStep& step, const Kernels& kernels, int64_t token, int64_t kv_head,
              void* keys, void* values, int64_t to) {
  const int64_t dim = step.dim, from = kv_head * dim;
  float* x = Scratch<float>(Purpose::kTile, dim);
  ToFloat(kernels, step.type, Advance(step.key, step.type, token * step.key_stride + from), dim, x);
  Transform(step, kernels, x, step.k_norm, token);
  StoreRow(step, kernels, step.key_scales, kv_head, x, Advance(keys, step.cache_type, to));
  ToFloat(kernels, step.type, Advance(step.value, step.type, token * step.value_stride + from), dim,
          x);
  Normalise(step, kernels, step.v_norm, x);
  StoreRow(step, kernels, step.value_scales, kv_head, x, Advance(values, step.cache_type, to));
}

// Calls f(b, t, kv_head) for each new row of some tokens.
template <typename F>
void ForEachRow(const AttentionStep& step, const ThreadPool& threads, const Range& tokens,
                const F& f) {
  const int64_t token_ns = PassNs(2 * step.kv_heads * step.dim);
  ForEachToken(step.batch, tokens, threads, token_ns, [&](int64_t b, int64_t t) {
    for (int64_t h = 0; h < step.kv_heads; ++h) f(b, t, h);
  });
}

}  // namespace

void LoadQuery(const AttentionStep& step, const Kernels& kernels, int64_t token, int64_t head,
               float* x) {
  ToFloat(kernels, step.type,
          Advance(step.query, step.type, token * step.query_stride + head * step.dim), step.dim, x);
  Transform(step, kernels, x, step.q_norm, token);
  if (step.key_scales) {
    Scale(kernels, step.key_scales, head * step.kv_heads / step.heads, step.dim, x);
  }
}

void Scale(const Kernels& kernels, const CacheScales& scales, int64_t kv_head, int64_t dim,
           float* x) {
  const float* of_head = scales.OfHead(kv_head, dim);
  if (scales.per_channel) {
    kernels.multiply(x, of_head, dim, x);
  } else {
    kernels.multiply_value(x, *of_head, dim, x);
  }
}

void WriteNewRows(const AttentionStep& step, const Kernels& kernels, const ThreadPool& threads,
                  const Range& tokens, void* keys, void* values) {
  const int64_t count = tokens.end - tokens.first;
  ForEachRow(step, threads, tokens, [&](int64_t b, int64_t t, int64_t h) {
    WriteRow(step, kernels, b * step.key_sequence + t, h, keys, values,
             ((b * step.kv_heads + h) * count + t - tokens.first) * step.dim);
  });
}

void CarryPast(const AttentionStep& step, const ThreadPool& threads) {
  if (step.past_key == step.present_key && step.past_value == step.present_value) return;
  const int64_t row_bytes = BytesOf(step.cache_type, step.dim);
  const auto carry = [&](const void* past, void* present, int64_t head) {
    if (past == present) return;
    const auto b = static_cast<size_t>(head / step.kv_heads);
    // Without new keys (a shared cache), the past already has the keys of this call's tokens.
    const int64_t past_rows = step.key_sequence > 0 ? step.past_length[b] : step.total_length[b];
    auto* to = static_cast<uint8_t*>(present) + head * step.present_capacity * row_bytes;
    if (past_rows > 0) {
      std::memcpy(to, static_cast<const uint8_t*>(past) + head * step.past_capacity * row_bytes,
                  static_cast<size_t>(past_rows * row_bytes));
    }
    const int64_t end = std::min(step.present_capacity, past_rows + step.key_sequence);
    std::memset(to + end * row_bytes, 0,
                static_cast<size_t>((step.present_capacity - end) * row_bytes));
  };
  const int64_t head_bytes = 2 * step.present_capacity * row_bytes;
  threads.ParallelFor(step.batch * step.kv_heads, CopyNs(head_bytes), [&](int64_t head) {
    carry(step.past_key, step.present_key, head);
    carry(step.past_value, step.present_value, head);
  });
}

void WritePresentRow(const AttentionStep& step, const Kernels& kernels, int64_t b, int64_t t,
                     int64_t kv_head) {
  const int64_t row = step.past_length[static_cast<size_t>(b)] + t;
  if (row >= step.present_capacity) return;  // the padding of a short prompt may have no place
  WriteRow(step, kernels, b * step.key_sequence + t, kv_head, step.present_key, step.present_value,
           ((b * step.kv_heads + kv_head) * step.present_capacity + row) * step.dim);
}

void WritePresent(const AttentionStep& step, const Kernels& kernels, const ThreadPool& threads) {
  CarryPast(step, threads);
  ForEachRow(step, threads, {0, step.key_sequence},
             [&](int64_t b, int64_t t, int64_t h) { WritePresentRow(step, kernels, b, t, h); });
}

void ShiftWindow(const AttentionStep& step, const ThreadPool& threads, const Range& tokens,
                 const void* keys, const void* values) {
  const int64_t row_bytes = BytesOf(step.cache_type, step.dim), count = tokens.end - tokens.first;
  const auto cache_rows = [&](int64_t total) {
    return WindowedCacheRows(total, step.present_capacity, step.window);
  };
  const auto shift = [&](const void* past, const void* fresh, void* present, int64_t head) {
    const auto b = static_cast<size_t>(head / step.kv_heads);
    const int64_t before = TokensBefore(step, b, tokens.first),
                  after = TokensBefore(step, b, tokens.end);
    const int64_t old_rows = cache_rows(before), new_rows = after - before;
    const int64_t kept = cache_rows(after);
    const int64_t kept_old = std::max<int64_t>(0, kept - new_rows);
    const int64_t kept_new = kept - kept_old;
    auto* to = static_cast<uint8_t*>(present) + head * step.present_capacity * row_bytes;
    const auto* from = static_cast<const uint8_t*>(tokens.first == 0 ? past : present) +
                       head * step.present_capacity * row_bytes;
    const uint8_t* oldest = from + (old_rows - kept_old) * row_bytes;
    if (kept_old > 0 && oldest != to) {
      std::memmove(to, oldest, static_cast<size_t>(kept_old * row_bytes));
    }
    const auto* added =
        static_cast<const uint8_t*>(fresh) + (head * count + new_rows - kept_new) * row_bytes;
    std::memcpy(to + kept_old * row_bytes, added, static_cast<size_t>(kept_new * row_bytes));
    if (past != present) {
      std::memset(to + kept * row_bytes, 0,
                  static_cast<size_t>((step.present_capacity - kept) * row_bytes));
    }
  };
  const int64_t head_bytes = 2 * step.present_capacity * row_bytes;
  threads.ParallelFor(step.batch * step.kv_heads, CopyNs(head_bytes), [&](int64_t head) {
    shift(step.past_key, keys, step.present_key, head);
    shift(step.past_value, values, step.present_value, head);
  });
}

void WriteWindowedPresent(const AttentionStep& step, const Kernels& kernels,
                          const ThreadPool& threads) {
  const int64_t most = ChunkTokens(step.prompt_chunk, step.batch, 1);
  for (int64_t first = 0; first < step.sequence; first += most) {
    const Range tokens{first, std::min(first + most, step.sequence)};
    const int64_t elements = step.batch * step.kv_heads * (tokens.end - first) * step.dim;
    auto* keys = Scratch<uint8_t>(Purpose::kNewRows, BytesOf(step.cache_type, 2 * elements));
    void* values = Advance(keys, step.cache_type, elements);
    WriteNewRows(step, kernels, threads, tokens, keys, values);
    ShiftWindow(step, threads, tokens, keys, values);
  }
}

}  // namespace ort_aie::host
