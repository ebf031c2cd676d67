#include "targets/npu/schedule/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/step_tensors.h"
#include "targets/host/attention_inputs.h"
#include "targets/npu/attention_rows.h"
#include "targets/npu/conversions.h"
#include "targets/npu/schedule/designs.h"
#include "targets/trace.h"

namespace ort_aie::npu_target {
namespace {

// Elements that the sequences `rope` and `append` process at a time.
constexpr int64_t kRotaryObject = 256, kRotaryMultiple = 32;

size_t TensorBytes(int64_t elements, DataType type) {
  return elements <= 0 ? 0 : static_cast<size_t>(BytesOf(type, elements));
}

// Whether the sequences `rope` and `append` can do the work before attention. They cannot quantise,
// so the host makes the codes of a cache of integers. They rotate by one position, after the norm.
bool CanPrepare(const AttentionStep& step, Design design) {
  return design == kDecode && !step.key_scales && !step.mixed_positions &&
         (!step.norm_after_rotary || (step.q_norm == nullptr && step.k_norm == nullptr)) &&
         (step.cos == nullptr || step.rotary_dim % kRotaryMultiple == 0);
}

// Heads of a token for one invocation.
struct Heads {
  int64_t first, count;
};

// The portions of a token's heads that the sequences process at a time: objects of 256 elements, or
// a divisor of that size; `rope` can also process one and a part.
std::vector<Heads> Portions(int64_t heads, int64_t dim, bool whole) {
  std::vector<Heads> all;
  for (int64_t first = 0; first < heads;) {
    const int64_t width = (heads - first) * dim;
    int64_t portion = width;
    if (width >= kRotaryObject && whole) portion = width / kRotaryObject * kRotaryObject;
    if (width < kRotaryObject) {
      portion = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(width)));
    }
    all.push_back({first, portion / dim});
    first += portion / dim;
  }
  return all;
}

// Rows on the device, one of each batch row, `stride` elements apart; heads are `head` apart.
struct Rows {
  npu::BufferView first;
  int64_t stride = 0, head = 0;

  npu::BufferView operator[](int64_t b) const { return Head(b, 0); }
  npu::BufferView Head(int64_t b, int64_t n) const {
    return {first.argument, first.offset + 2 * (b * stride + n * head)};
  }
};

// Copies heads of a batch row to places farther apart, or closer together.
npu::Invocation MoveHeads(const AttentionStep& step, int64_t heads, const Rows& x, const Rows& y,
                          int64_t b) {
  return {"move_heads",
          {{"heads", heads},
           {"dim", step.dim},
           {"x_stride", x.head},
           {"y_stride", y.head},
           {"copies", kRotaryObject / std::gcd(heads * step.dim, kRotaryObject)}},
          {{"x", x[b]}, {"y", y[b]}}};
}

// A token's rows on the device: a query for each head, a key and a value for each KV head.
struct TokenRows {
  Rows query, key, value;
};

// Normalises and rotates `projected`, and appends the result to the copy of the cache.
class Preparation {
 public:
  Preparation(Batch& batch, const AttentionStep& step, const TokenCache& cache)
      : batch_(batch),
        step_(step),
        cache_(cache),
        padded_(PaddedHeadDim(step.dim)),
        used_(static_cast<float>(step.dim) / static_cast<float>(padded_)) {
    for (int64_t b = 0; b < step.batch; ++b) {
      tables_.push_back(RotaryTable(batch, step, b));
    }
  }

  TokenRows Run(const TokenRows& projected) {
    const bool rotated = step_.cos != nullptr;
    TokenRows rows = {Spread(projected.query, step_.heads), Spread(projected.key, step_.kv_heads),
                      Spread(projected.value, step_.kv_heads)};
    if (rotated || step_.q_norm != nullptr) {
      const int64_t width = step_.heads * padded_;
      const Rows x =
          std::exchange(rows.query, {batch_.memory.Scratch(step_.batch * width), width, padded_});
      Rotate(x, step_.heads, rotated, step_.q_norm, rows.query);
    }
    if (rotated || step_.k_norm != nullptr) {
      const int64_t width = step_.kv_heads * padded_;
      const Rows x =
          std::exchange(rows.key, {batch_.memory.Result(step_.batch * width), width, padded_});
      Rotate(x, step_.kv_heads, rotated, step_.k_norm, rows.key);
    }
    if (step_.v_norm != nullptr) {
      const int64_t width = step_.kv_heads * padded_;
      const Rows x =
          std::exchange(rows.value, {batch_.memory.Result(step_.batch * width), width, padded_});
      Rotate(x, step_.kv_heads, false, step_.v_norm, rows.value);
    }
    for (int64_t b = 0; b < step_.batch; ++b) {
      Append(rows.key, b, cache_.rows.KeyOffset(b));
      Append(rows.value, b, cache_.rows.ValueOffset(b));
    }
    // If nothing changes them, the host reads the projected rows themselves.
    if (!rotated && step_.k_norm == nullptr) rows.key = projected.key;
    if (step_.v_norm == nullptr) rows.value = projected.value;
    for (const Rows& kept : {rows.key, rows.value}) batch_.memory.Keep(kept.first);
    return rows;
  }

 private:
  // The heads, in the layout that the device uses for them.
  Rows Spread(const Rows& x, int64_t heads) {
    if (padded_ == step_.dim) return x;
    const int64_t width = heads * padded_;
    const Rows y{batch_.Input(step_.batch * width), width, padded_};
    for (int64_t b = 0; b < step_.batch; ++b)
      batch_.Invoke(kDecode, MoveHeads(step_, heads, x, y, b));
    return y;
  }

  void Rotate(const Rows& x, int64_t heads, bool rotated, const void* norm, const Rows& y) {
    npu::BufferView weight = x.first;  // has no bytes
    if (norm != nullptr) {
      weight = batch_.Input(padded_, [&step = step_, norm, used = used_](uint16_t* to) {
        const host::Kernels& kernels = host::SelectedKernels();
        if (PaddedHeadDim(step.dim) == step.dim) {
          return ToBfloat16(kernels, step.type, norm, step.dim, to);
        }
        float* weights = host::Scratch<float>(host::Purpose::kNormWeight, step.dim);
        host::ToFloat(kernels, step.type, norm, step.dim, weights);
        for (int64_t d = 0; d < step.dim; ++d) weights[d] *= std::sqrt(used);
        kernels.float_to_bfloat16(weights, step.dim, to);
      });
    }
    for (int64_t b = 0; b < step_.batch; ++b) {
      for (const Heads& portion : Portions(heads, padded_, false)) {
        batch_.Invoke(kDecode, {"rope",
                                {{"heads", portion.count},
                                 {"head_dim", padded_},
                                 {"rotary_dim", rotated ? step_.rotary_dim : 0},
                                 {"interleaved", rotated && step_.rotary_interleaved ? 1 : 0},
                                 {"norm", norm != nullptr ? 1 : 0},
                                 {"eps_bits", FloatBits(step_.norm_epsilon * used_)}},
                                {{"x", x.Head(b, portion.first)},
                                 {"weight", weight},
                                 {"table", tables_[static_cast<size_t>(b)]},
                                 {"y", y.Head(b, portion.first)}}});
      }
    }
  }

  void Append(const Rows& x, int64_t b, int64_t offset) {
    const auto i = static_cast<size_t>(b);
    const int64_t head_bytes = 2 * cache_.rows.capacity() * padded_;
    for (const Heads& portion : Portions(step_.kv_heads, padded_, true)) {
      const npu::BufferView cache =
          batch_.memory.View(cache_.rows.buffer(), offset + portion.first * head_bytes);
      batch_.Invoke(kDecode,
                    {"append",
                     {{"kv_heads", portion.count},
                      {"head_dim", padded_},
                      {"position", step_.past_length[i] - cache_.first[i]},
                      {"capacity", cache_.rows.capacity()}},
                     {{"x", x.Head(b, portion.first)}, {"table", tables_[i]}, {"cache", cache}}});
    }
  }

  Batch& batch_;
  const AttentionStep& step_;
  const TokenCache& cache_;
  const int64_t padded_;
  // The fraction of a head that is not zeros. A norm uses the mean of squares of the whole head,
  // which is this fraction times the mean of the part; epsilon and the weight compensate for it.
  const float used_;
  std::vector<npu::BufferView> tables_;
};

// The host has the present after the run, or writes it before.
void AnnouncePresent(Batch& batch, const AttentionStep& step, bool later) {
  const size_t bytes =
      TensorBytes(step.batch * step.kv_heads * step.present_capacity * step.dim, step.cache_type);
  for (void* const present : {step.present_key, step.present_value}) {
    if (later) {
      batch.WritesLater(present, static_cast<int64_t>(bytes), DataType::kUint8);
    } else {
      batch.tensors.Prepare(present, bytes);
    }
  }
}

// The copy of the cache. Before the run, the host writes what it has of the new rows, and sends the
// copy its past, and these rows if it `made` them.
TokenCache CacheOf(Batch& batch, const AttentionStep& step, const CachePlace& place,
                   const NewRows& new_rows, bool made) {
  const Lengths lengths = LengthsOf(step, 0, step.sequence);
  TokenCache cache{place.rows, place.copy, {}};
  for (size_t b = 0; b < lengths.total.size(); ++b) {
    cache.first.push_back(place.rows.FirstTokenFor(step, b, lengths));
  }
  batch.Prepare([&step, &threads = batch.threads(), copy = place.copy, lengths, new_rows, made] {
    new_rows.WriteHosts(threads, made);
    copy->Hold(step, lengths, made ? step.total_length : step.past_length, new_rows.rows(),
               threads);
  });
  return cache;
}

}  // namespace

bool RestOnHost(const Batch& batch, const AttentionStep& step) {
  bool all = true;
  const auto check = [&](const void* tensor, size_t bytes) {
    const bool own =
        tensor == step.query || tensor == step.key || tensor == step.value || tensor == step.output;
    all = all && (own || batch.tensors.OnHost(tensor, bytes));
    // What the copy has of the past is looked up before the host prepares anything.
    const bool past = tensor == step.past_key || tensor == step.past_value;
    all = all && !(past && batch.tensors.IsPrepared(tensor, bytes));
  };
  ForEachRead(step, check);
  ForEachWrite(step, check);
  return all;
}

npu::BufferView RotaryTable(Batch& batch, const AttentionStep& step, int64_t b) {
  const int64_t half = step.rotary_dim / 2;
  const void *cos = nullptr, *sin = nullptr;
  if (step.cos != nullptr) {
    const int64_t first = step.positions[static_cast<size_t>(b)] * half;
    cos = Advance(step.cos, step.type, first);
    sin = Advance(step.sin, step.type, first);
  }
  return batch.SharedInput({cos, sin, half}, kRotaryObject,
                           [cos, sin, half, type = step.type](uint16_t* y) {
                             if (cos == nullptr) return;
                             const host::Kernels& kernels = host::SelectedKernels();
                             ToBfloat16(kernels, type, cos, half, y);
                             ToBfloat16(kernels, type, sin, half, y + half);
                           });
}

bool HostPrepares(const AttentionStep& step, Design design) { return !CanPrepare(step, design); }

bool AppendAttention(Scheduling& scheduling, Batch& batch, Design design,
                     const AttentionStep& step) {
  const auto find = [&](const void* rows, int64_t stride, int64_t heads) {
    return batch.tensors.Find(rows,
                              TensorBytes((step.batch - 1) * stride + heads * step.dim, step.type));
  };
  const BatchTensors::Source query = find(step.query, step.query_stride, step.heads),
                             key = find(step.key, step.key_stride, step.kv_heads),
                             value = find(step.value, step.value_stride, step.kv_heads);
  const bool by_host = query.on_host() && key.on_host() && value.on_host();
  const bool by_device = query.view && key.view && value.view && BatchMemory::IsResult(*key.view) &&
                         BatchMemory::IsResult(*value.view) && CanPrepare(step, design);
  if (!(by_host || by_device) || !RestOnHost(batch, step)) return false;

  const NewRows new_rows(step);
  const TokenCache cache = CacheOf(batch, step, scheduling.contents.Cache(step), new_rows, by_host);
  const int64_t padded = PaddedHeadDim(step.dim), width = step.heads * padded;
  TokenRows rows;
  if (by_host) {
    const auto fill = [&step, width](uint16_t* y) {
      for (int64_t b = 0; b < step.batch; ++b) StoreQueries(step, b, y + b * width);
    };
    rows.query = {batch.Input(step.batch * width, fill), width, padded};
  } else {
    rows = Preparation(batch, step, cache)
               .Run({{*query.view, step.query_stride, step.dim},
                     {*key.view, step.key_stride, step.dim},
                     {*value.view, step.value_stride, step.dim}});
  }
  // The device's result may be the output as it is, or after heads are moved together.
  const int64_t output_width = step.heads * step.dim;
  const bool moved = padded != step.dim && design == kDecode && !step.value_scales;
  const bool whole = moved || (padded == step.dim && !step.value_scales);
  const Rows output{whole ? batch.Output(step.output, step.batch * output_width, step.type)
                          : batch.memory.Result(step.batch * width),
                    whole ? output_width : width, whole ? step.dim : padded};
  const Rows o = moved ? Rows{batch.memory.Scratch(step.batch * width), width, padded} : output;
  for (int64_t b = 0; b < step.batch; ++b) {
    const auto i = static_cast<size_t>(b);
    batch.Invoke(design, {"attention",
                          {{"heads", step.heads},
                           {"kv_heads", step.kv_heads},
                           {"head_dim", padded},
                           {"context", step.total_length[i] - cache.first[i]},
                           {"capacity", cache.rows.capacity()},
                           {"window", std::max<int64_t>(step.window, 0)},
                           {"scale_bits", FloatBits(step.scale)},
                           {"softcap_bits", FloatBits(step.softcap)}},
                          {{"q", rows.query[b]},
                           {"k", batch.memory.View(cache.rows.buffer(), cache.rows.KeyOffset(b))},
                           {"v", batch.memory.View(cache.rows.buffer(), cache.rows.ValueOffset(b))},
                           {"o", o[b]}}});
    if (moved) batch.Invoke(design, MoveHeads(step, step.heads, o, output, b));
  }
  batch.Then([&step, &threads = batch.threads(), copy = cache.copy, by_device, whole, rows, o,
              new_rows](const Batch::Results& results) {
    for (int64_t b = 0; b < (whole ? 0 : step.batch); ++b) StoreOutput(step, results[o[b]], b);
    if (by_device) {
      new_rows.Store(*copy, threads, [&](int64_t head, int64_t, bool value) {
        const Rows& all = value ? rows.value : rows.key;
        return results[all.Head(head / step.kv_heads, head % step.kv_heads)];
      });
    }
    new_rows.Shift(threads);
  });
  if (!whole) batch.WritesLater(step.output, step.batch * step.heads * step.dim, step.type);
  AnnouncePresent(batch, step, by_device || new_rows.separate());
  return true;
}

TokenCache AppendCache(Batch& batch, const AttentionStep& step, const CachePlace& place) {
  const NewRows new_rows(step);
  const TokenCache cache = CacheOf(batch, step, place, new_rows, false);
  batch.Then(
      [&step, &threads = batch.threads(), copy = place.copy, new_rows](const Batch::Results&) {
        const TraceSpan traced("host", "new rows");
        copy->FetchNew(step);
        new_rows.Store(*copy, threads, [&](int64_t head, int64_t token, bool value) {
          auto* row = host::Scratch<uint16_t>(host::Purpose::kTile, PaddedHeadDim(step.dim));
          const int64_t values = value ? step.batch * step.kv_heads : 0;
          copy->Row(values + head,
                    step.past_length[static_cast<size_t>(head / step.kv_heads)] + token, row);
          return row;
        });
        new_rows.Shift(threads);
      });
  AnnouncePresent(batch, step, true);
  return cache;
}

}  // namespace ort_aie::npu_target
