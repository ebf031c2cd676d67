#include "targets/npu/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/step_tensors.h"
#include "targets/host/attention_inputs.h"
#include "targets/npu/conversions.h"
#include "targets/npu/designs.h"

namespace ort_aie::npu_target {
namespace {

// A prompt with more queries than one run can take is divided into chunks; for each, the chunks
// before it are past.
constexpr int64_t kChunkMultiple = 64;  // tokens
// Elements that the sequences `rope` and `append` process at a time.
constexpr int64_t kRotaryObject = 256, kRotaryMultiple = 32;

size_t Bytes(int64_t elements, DataType type) {
  return elements <= 0 ? 0 : static_cast<size_t>(BytesOf(type, elements));
}

// All heads of a token's query -> (heads, padded dim), with zeros beyond dim.
void StoreQueries(Engine& engine, const AttentionStep& step, int64_t token, uint16_t* y) {
  const auto& kernels = engine.kernels();
  const int64_t padded = PaddedHeadDim(step.dim);
  float* x = host::Scratch<float>(host::Purpose::kTile, step.dim);
  for (int64_t head = 0; head < step.heads; ++head) {
    host::LoadQuery(step, kernels, token, head, x);
    kernels.float_to_bfloat16(x, step.dim, y + head * padded);
    std::fill(y + head * padded + step.dim, y + (head + 1) * padded, uint16_t{0});
  }
}

// (heads, padded dim) -> the output of a token.
void StoreOutput(Engine& engine, const AttentionStep& step, const uint16_t* o, int64_t token) {
  const int64_t padded = PaddedHeadDim(step.dim);
  for (int64_t head = 0; head < step.heads; ++head) {
    void* y = host::Advance(step.output, step.type, (token * step.heads + head) * step.dim);
    if (!step.value_scales) {
      FromBfloat16(engine.kernels(), o + head * padded, step.dim, step.type, y);
      continue;
    }
    float* x = host::Scratch<float>(host::Purpose::kTile, step.dim);
    engine.kernels().bfloat16_to_float(o + head * padded, step.dim, x);
    host::Scale(step.value_scales, head * step.kv_heads / step.heads, step.dim, x);
    host::FromFloat(engine.kernels(), step.type, x, step.dim, y);
  }
}

int64_t Window(const AttentionStep& step) { return std::max<int64_t>(step.window, 0); }

// Whether the sequences `rope` and `append` can do the work before attention. They cannot quantise,
// so the host makes the codes of a cache of integers. They rotate by one position, after the norm.
bool CanPrepare(const AttentionStep& step, const char* design) {
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
  Preparation(Engine& engine, Batch& batch, const AttentionStep& step, const KvCopy& copy)
      : engine_(engine),
        batch_(batch),
        step_(step),
        copy_(copy),
        padded_(PaddedHeadDim(step.dim)),
        used_(static_cast<float>(step.dim) / static_cast<float>(padded_)) {
    for (int64_t b = 0; b < step.batch; ++b) {
      tables_.push_back(RotaryTable(engine, batch, step, b));
    }
  }

  TokenRows Run(const TokenRows& projected) {
    const bool rotated = step_.cos != nullptr;
    TokenRows rows = {Spread(projected.query, step_.heads), Spread(projected.key, step_.kv_heads),
                      Spread(projected.value, step_.kv_heads)};
    if (rotated || step_.q_norm != nullptr) {
      const int64_t width = step_.heads * padded_;
      const Rows x =
          std::exchange(rows.query, {batch_.Scratch(step_.batch * width), width, padded_});
      Rotate(x, step_.heads, rotated, step_.q_norm, rows.query);
    }
    if (rotated || step_.k_norm != nullptr) {
      const int64_t width = step_.kv_heads * padded_;
      const Rows x = std::exchange(rows.key, {batch_.Result(step_.batch * width), width, padded_});
      Rotate(x, step_.kv_heads, rotated, step_.k_norm, rows.key);
    }
    if (step_.v_norm != nullptr) {
      const int64_t width = step_.kv_heads * padded_;
      const Rows x =
          std::exchange(rows.value, {batch_.Result(step_.batch * width), width, padded_});
      Rotate(x, step_.kv_heads, false, step_.v_norm, rows.value);
    }
    for (int64_t b = 0; b < step_.batch; ++b) {
      Append(rows.key, b, copy_.KeyOffset(b));
      Append(rows.value, b, copy_.ValueOffset(b));
    }
    // If nothing changes them, the host reads the projected rows themselves.
    if (!rotated && step_.k_norm == nullptr) rows.key = projected.key;
    if (step_.v_norm == nullptr) rows.value = projected.value;
    for (const Rows& kept : {rows.key, rows.value}) batch_.Keep(kept.first);
    return rows;
  }

 private:
  // The heads, in the layout that the device uses for them.
  Rows Spread(const Rows& x, int64_t heads) {
    if (padded_ == step_.dim) return x;
    const int64_t width = heads * padded_;
    const Rows y{batch_.Input(step_.batch * width, [](uint16_t*) {}), width, padded_};
    for (int64_t b = 0; b < step_.batch; ++b)
      batch_.Invoke(kDecode, MoveHeads(step_, heads, x, y, b));
    return y;
  }

  std::map<std::string, int64_t> Parameters(bool rotated, const void* norm) const {
    return {{"tokens", 1},
            {"head_dim", padded_},
            {"rotary_dim", rotated ? step_.rotary_dim : 0},
            {"interleaved", rotated && step_.rotary_interleaved ? 1 : 0},
            {"norm", norm != nullptr ? 1 : 0},
            {"eps_bits", FloatBits(step_.norm_epsilon * used_)}};
  }

  void Rotate(const Rows& x, int64_t heads, bool rotated, const void* norm, const Rows& y) {
    npu::BufferView weight = x.first;  // has no bytes
    if (norm != nullptr) {
      weight = batch_.Input(padded_, [&](uint16_t* to) {
        if (padded_ == step_.dim) {
          return ToBfloat16(engine_.kernels(), step_.type, norm, step_.dim, to);
        }
        float* weights = host::Scratch<float>(host::Purpose::kNormWeight, step_.dim);
        host::ToFloat(engine_.kernels(), step_.type, norm, step_.dim, weights);
        for (int64_t d = 0; d < step_.dim; ++d) weights[d] *= std::sqrt(used_);
        engine_.kernels().float_to_bfloat16(weights, step_.dim, to);
      });
    }
    for (int64_t b = 0; b < step_.batch; ++b) {
      for (const Heads& portion : Portions(heads, padded_, false)) {
        npu::Invocation rope{"rope",
                             Parameters(rotated, norm),
                             {{"x", x.Head(b, portion.first)},
                              {"weight", weight},
                              {"table", tables_[static_cast<size_t>(b)]},
                              {"y", y.Head(b, portion.first)}}};
        rope.parameters["heads"] = portion.count;
        batch_.Invoke(kDecode, std::move(rope));
      }
    }
  }

  void Append(const Rows& x, int64_t b, int64_t offset) {
    const auto i = static_cast<size_t>(b);
    const int64_t head_bytes = 2 * copy_.capacity() * padded_;
    for (const Heads& portion : Portions(step_.kv_heads, padded_, true)) {
      const npu::BufferView from = x.Head(b, portion.first);
      npu::Invocation append{
          "append",
          Parameters(false, nullptr),
          {{"x", from},
           {"weight", from},
           {"table", tables_[i]},
           {"cache", batch_.View(copy_.buffer(), offset + portion.first * head_bytes)}}};
      append.parameters["kv_heads"] = portion.count;
      append.parameters["position"] = step_.past_length[i] - copy_.FirstToken(i);
      append.parameters["capacity"] = copy_.capacity();
      batch_.Invoke(kDecode, std::move(append));
    }
  }

  Engine& engine_;
  Batch& batch_;
  const AttentionStep& step_;
  const KvCopy& copy_;
  const int64_t padded_;
  // The fraction of a head that is not zeros. A norm uses the mean of squares of the whole head,
  // which is this fraction times the mean of the part; epsilon and the weight compensate for it.
  const float used_;
  std::vector<npu::BufferView> tables_;
};

// The new rows of a windowed cache, (batch, kv_heads, tokens, dim). They are kept separate until
// the device is done: with an in-place cache, the present is also the past that a second attempt
// needs.
struct FreshRows {
  FreshRows(const AttentionStep& step, const Range& new_tokens)
      : tokens(new_tokens),
        bytes(Bytes(step.batch * step.kv_heads * (tokens.end - tokens.first) * step.dim,
                    step.cache_type)),
        memory(2 * bytes) {}

  void* keys() { return memory.data(); }
  void* values() { return memory.data() + bytes; }
  HostRows Of(const AttentionStep& step) {
    HostRows rows{keys(), values(), tokens.end - tokens.first, {}};
    for (size_t b = 0; b < step.past_length.size(); ++b) {
      rows.first.push_back(step.past_length[b] + tokens.first);
    }
    return rows;
  }

  Range tokens;
  size_t bytes;
  std::vector<uint8_t> memory;
};

// The new rows, at their places in the present.
HostRows InPresent(const AttentionStep& step) {
  return {step.present_key, step.present_value, step.present_capacity,
          std::vector<int64_t>(step.past_length.size(), 0)};
}

// The rows of a step of one query row that the host gets: at their places in the present, or
// separate until the device is done.
class NewRows {
 public:
  explicit NewRows(const AttentionStep& step)
      : step_(step),
        fresh_(step.windowed_cache ? std::make_shared<FreshRows>(step, Range{0, 1}) : nullptr),
        rows_(fresh_ != nullptr ? fresh_->Of(step) : InPresent(step)) {}

  const HostRows& rows() const { return rows_; }
  bool separate() const { return fresh_ != nullptr; }

  // Before the run: writes what the host has, which includes the new rows if the host made them.
  void WriteHosts(Engine& engine, const ThreadPool& threads, bool made) const {
    const TraceSpan traced("host", "write present");
    if (made && separate()) {
      host::WriteNewRows(step_, engine.kernels(), threads, fresh_->tokens, fresh_->keys(),
                         fresh_->values());
    } else if (made) {
      host::WritePresent(step_, engine.kernels(), threads);
    } else if (!separate()) {
      host::CarryPast(step_, threads);
    }
  }

  // After the run: stores rows that the device has made and appended to the copy; of(head, value)
  // gives a head's key or value. If the cache's type cannot represent all of them (float16, values
  // below 2^-17), the device's rows differ from the host's, and the next call sends them.
  template <typename F>
  void Store(Engine& engine, KvCopy& copy, const F& of) const {
    const auto& kernels = engine.kernels();
    auto* again = host::Scratch<uint16_t>(host::Purpose::kKeys, step_.dim);
    bool same = true;
    for (int64_t head = 0; head < step_.batch * step_.kv_heads; ++head) {
      const auto b = static_cast<size_t>(head / step_.kv_heads);
      const int64_t row =
          (head * rows_.capacity + step_.past_length[b] - rows_.first[b]) * step_.dim;
      for (const bool value : {false, true}) {
        const uint16_t* x = of(head, value);
        void* all = const_cast<void*>(value ? rows_.values : rows_.keys);
        void* to = host::Advance(all, step_.cache_type, row);
        FromBfloat16(kernels, x, step_.dim, step_.cache_type, to);
        ToBfloat16(kernels, step_.cache_type, to, step_.dim, again);
        same = same && std::memcmp(again, x, static_cast<size_t>(2 * step_.dim)) == 0;
      }
    }
    if (same) copy.Appended(step_, rows_);
  }

  // At the end: moves separate rows into the present.
  void Shift(const ThreadPool& threads) const {
    if (separate()) {
      host::ShiftWindow(step_, threads, fresh_->tokens, fresh_->keys(), fresh_->values());
    }
  }

  // The host has the present after the run.
  void Announce(Batch& batch) const {
    const auto present = static_cast<int64_t>(
        Bytes(step_.batch * step_.kv_heads * step_.present_capacity * step_.dim, step_.cache_type));
    batch.Writes(step_.present_key, present, DataType::kUint8, std::nullopt);
    batch.Writes(step_.present_value, present, DataType::kUint8, std::nullopt);
  }

 private:
  const AttentionStep& step_;
  std::shared_ptr<FreshRows> fresh_;
  HostRows rows_;
};

}  // namespace

bool RestOnHost(const Batch& batch, const AttentionStep& step) {
  bool all = true;
  const auto check = [&](const void* tensor, size_t bytes) {
    const bool own =
        tensor == step.query || tensor == step.key || tensor == step.value || tensor == step.output;
    all = all && (own || batch.OnHost(tensor, bytes));
  };
  ForEachRead(step, check);
  ForEachWrite(step, check);
  return all;
}

npu::BufferView RotaryTable(Engine& engine, Batch& batch, const AttentionStep& step, int64_t b) {
  const int64_t half = step.rotary_dim / 2;
  const void *cos = nullptr, *sin = nullptr;
  if (step.cos != nullptr) {
    const int64_t first = step.positions[static_cast<size_t>(b)] * half;
    cos = host::Advance(step.cos, step.type, first);
    sin = host::Advance(step.sin, step.type, first);
  }
  return batch.SharedInput({cos, sin, half}, kRotaryObject, [&](uint16_t* y) {
    if (cos == nullptr) return;
    ToBfloat16(engine.kernels(), step.type, cos, half, y);
    ToBfloat16(engine.kernels(), step.type, sin, half, y + half);
  });
}

int64_t TokensAtATime(const Engine& engine, const AttentionStep& step) {
  int64_t most = engine.options().query_bytes / (2 * step.heads * PaddedHeadDim(step.dim));
  if (step.prompt_chunk > 0) most = std::min(most, step.prompt_chunk);
  most = std::max(kChunkMultiple, most / kChunkMultiple * kChunkMultiple);
  return std::min(most, step.sequence);
}

bool HostPrepares(const AttentionStep& step, const char* design) {
  return !CanPrepare(step, design);
}

bool AppendAttention(Engine& engine, Batch& batch, const char* design, const AttentionStep& step,
                     PlanCaches& caches, const ThreadPool& threads) {
  const auto find = [&](const void* rows, int64_t stride, int64_t heads) {
    return batch.Find(rows, Bytes((step.batch - 1) * stride + heads * step.dim, step.type));
  };
  const Batch::Source query = find(step.query, step.query_stride, step.heads),
                      key = find(step.key, step.key_stride, step.kv_heads),
                      value = find(step.value, step.value_stride, step.kv_heads);
  const bool by_host = query.on_host() && key.on_host() && value.on_host();
  const bool by_device = query.view && key.view && value.view && batch.IsResult(*key.view) &&
                         batch.IsResult(*value.view) && CanPrepare(step, design);
  if (!(by_host || by_device) || !RestOnHost(batch, step)) return false;

  const NewRows new_rows(step);
  new_rows.WriteHosts(engine, threads, by_host);
  KvCopy& copy = caches.Of(step);
  copy.Hold(step, SpanOf(step, 0, 1), by_host ? step.total_length : step.past_length,
            new_rows.rows(), threads);
  const int64_t padded = PaddedHeadDim(step.dim), width = step.heads * padded;
  TokenRows rows;
  if (by_host) {
    rows.query = {batch.Input(step.batch * width,
                              [&](uint16_t* y) {
                                for (int64_t b = 0; b < step.batch; ++b) {
                                  StoreQueries(engine, step, b, y + b * width);
                                }
                              }),
                  width, padded};
  } else {
    rows = Preparation(engine, batch, step, copy)
               .Run({{*query.view, step.query_stride, step.dim},
                     {*key.view, step.key_stride, step.dim},
                     {*value.view, step.value_stride, step.dim}});
  }
  // The device's result may be the output as it is, or after heads are moved together.
  const int64_t output_width = step.heads * step.dim;
  const bool moved = padded != step.dim && design == kDecode && !step.value_scales;
  const bool whole = moved || (padded == step.dim && !step.value_scales);
  const Rows output{whole ? batch.Output(step.output, step.batch * output_width, step.type)
                          : batch.Result(step.batch * width),
                    whole ? output_width : width, whole ? step.dim : padded};
  const Rows o = moved ? Rows{batch.Scratch(step.batch * width), width, padded} : output;
  for (int64_t b = 0; b < step.batch; ++b) {
    const auto i = static_cast<size_t>(b);
    batch.Invoke(design, {"attention",
                          {{"heads", step.heads},
                           {"kv_heads", step.kv_heads},
                           {"head_dim", padded},
                           {"context", step.total_length[i] - copy.FirstToken(i)},
                           {"capacity", copy.capacity()},
                           {"window", Window(step)},
                           {"scale_bits", FloatBits(step.scale)},
                           {"softcap_bits", FloatBits(step.softcap)}},
                          {{"q", rows.query[b]},
                           {"k", batch.View(copy.buffer(), copy.KeyOffset(b))},
                           {"v", batch.View(copy.buffer(), copy.ValueOffset(b))},
                           {"o", o[b]}}});
    if (moved) batch.Invoke(design, MoveHeads(step, step.heads, o, output, b));
  }
  batch.Then([&engine, &step, &threads, &copy, by_device, whole, rows, o,
              new_rows](const Batch::Results& results) {
    for (int64_t b = 0; b < (whole ? 0 : step.batch); ++b) {
      StoreOutput(engine, step, results[o[b]], b);
    }
    if (by_device) {
      new_rows.Store(engine, copy, [&](int64_t head, bool value) {
        const Rows& all = value ? rows.value : rows.key;
        return results[all.Head(head / step.kv_heads, head % step.kv_heads)];
      });
    }
    new_rows.Shift(threads);
  });
  if (!whole) {
    batch.Writes(step.output, step.batch * step.heads * step.dim, step.type, std::nullopt);
  }
  if (by_device || new_rows.separate()) new_rows.Announce(batch);
  return true;
}

KvCopy& AppendCache(Engine& engine, Batch& batch, const AttentionStep& step, PlanCaches& caches,
                    const ThreadPool& threads) {
  const NewRows new_rows(step);
  new_rows.WriteHosts(engine, threads, false);
  KvCopy& copy = caches.Of(step);
  copy.Hold(step, SpanOf(step, 0, 1), step.past_length, new_rows.rows(), threads);
  batch.Then([&engine, &step, &threads, &copy, new_rows](const Batch::Results&) {
    copy.FetchLast(step);
    auto* row = host::Scratch<uint16_t>(host::Purpose::kTile, PaddedHeadDim(step.dim));
    new_rows.Store(engine, copy, [&](int64_t head, bool value) {
      const int64_t values = value ? step.batch * step.kv_heads : 0;
      copy.Row(values + head, step.past_length[static_cast<size_t>(head / step.kv_heads)], row);
      return row;
    });
    new_rows.Shift(threads);
  });
  new_rows.Announce(batch);
  return copy;
}

namespace {

// Queries of a prompt, if the device has all keys.
class Prompt {
 public:
  Prompt(Engine& engine, const AttentionStep& step, const ThreadPool& threads)
      : engine_(engine),
        step_(step),
        threads_(threads),
        manifest_(engine.device().Overlay(kFlowQkv)) {
    Require(manifest_ != nullptr, "there is no overlay flow_qkv");
  }

  // Attends to `total` keys (0 if none are visible) with tokens [first, end) of a batch row.
  void Attend(const KvCopy& copy, int64_t b, int64_t first, int64_t end, int64_t total) const {
    const auto i = static_cast<size_t>(b);
    // Queries before the first visible key see no key.
    const int64_t begin =
        step_.causal ? std::clamp(copy.FirstToken(i) - step_.past_length[i], first, end) : first;
    const int64_t keys = total - copy.FirstToken(i);
    Zero(b, first, begin);
    for (int64_t t = begin; t < end;) {
      // Without causality a query sees all keys, including those after its chunk.
      const int64_t count = step_.causal ? end - t : std::min(end - t, keys);
      const int64_t past =
          step_.causal ? step_.past_length[i] + t - copy.FirstToken(i) : keys - count;
      Run(copy, b, t, count, past);
      t += count;
    }
  }

  void Zero(int64_t b, int64_t first, int64_t end) const {
    const size_t bytes = Bytes(step_.heads * step_.dim, step_.type);
    std::memset(static_cast<uint8_t*>(step_.output) +
                    static_cast<size_t>(b * step_.sequence + first) * bytes,
                0, static_cast<size_t>(end - first) * bytes);
  }

 private:
  void Run(const KvCopy& copy, int64_t b, int64_t first, int64_t count, int64_t past) const {
    const int64_t padded = PaddedHeadDim(step_.dim), width = step_.heads * padded;
    npu::Invocation attention{"attention",
                              {{"heads", step_.heads},
                               {"kv_heads", step_.kv_heads},
                               {"head_dim", padded},
                               {"prompt", count},
                               {"past", past},
                               {"capacity", copy.capacity()},
                               {"window", Window(step_)},
                               {"causal", step_.causal ? 1 : 0},
                               {"scale_bits", FloatBits(step_.scale)},
                               {"softcap_bits", FloatBits(step_.softcap)}},
                              {{"q", {0, 0}},
                               {"k", {2, copy.KeyOffset(b)}},
                               {"v", {2, copy.ValueOffset(b)}},
                               {"o", {1, 0}}}};
    const auto bytes = static_cast<size_t>(ArgumentBytes(*manifest_, attention, "q"));
    const auto q = engine_.device().Allocate(bytes), o = engine_.device().Allocate(bytes);
    auto* queries = reinterpret_cast<uint16_t*>(q->host());
    const int64_t token = b * step_.sequence + first;
    threads_.ParallelFor(
        count, [&](int64_t t) { StoreQueries(engine_, step_, token + t, queries + t * width); });
    const auto used = static_cast<size_t>(2 * count * width);
    std::memset(q->host() + used, 0, bytes - used);
    q->ToDevice(0, bytes);
    Buffer* const arguments[] = {q.get(), o.get(), copy.buffer().get()};
    engine_.Run(kFlowQkv, {std::move(attention)}, arguments);
    o->FromDevice(0, used);
    const auto* outputs = reinterpret_cast<const uint16_t*>(o->host());
    threads_.ParallelFor(
        count, [&](int64_t t) { StoreOutput(engine_, step_, outputs + t * width, token + t); });
  }

  Engine& engine_;
  const AttentionStep& step_;
  const ThreadPool& threads_;
  const npu::Manifest* const manifest_;
};

}  // namespace

void AttendPrompt(Engine& engine, const AttentionStep& step, PlanCaches& caches,
                  const ThreadPool& threads) {
  const Prompt prompt(engine, step, threads);
  const auto write_present = [&](auto write) {
    const TraceSpan traced("host", "write present");
    write();
  };
  if (!step.windowed_cache) {
    write_present([&] { host::WritePresent(step, engine.kernels(), threads); });
  }
  KvCopy& copy = caches.Of(step);
  const int64_t most = TokensAtATime(engine, step);
  for (int64_t first = 0; first < step.sequence; first += most) {
    const Range tokens{first, std::min(first + most, step.sequence)};
    // Without causality, queries see later keys too.
    const Span span =
        SpanOf(step, step.causal ? first : 0, step.causal ? tokens.end : step.sequence);
    if (step.windowed_cache) {
      FreshRows fresh(step, tokens);
      write_present([&] {
        host::WriteNewRows(step, engine.kernels(), threads, tokens, fresh.keys(), fresh.values());
      });
      copy.Hold(step, span, span.total, fresh.Of(step), threads);
    } else {
      copy.Hold(step, span, span.total, InPresent(step), threads);
    }
    for (int64_t b = 0; b < step.batch; ++b) {
      const auto i = static_cast<size_t>(b);
      // Tokens after a shorter prompt are padding.
      const int64_t own = step.total_length[i] - step.past_length[i];
      const int64_t end = std::clamp(own, first, tokens.end);
      prompt.Attend(copy, b, first, end, span.total[i]);
      prompt.Zero(b, end, tokens.end);
    }
  }
  if (step.windowed_cache) {
    write_present([&] { host::WriteWindowedPresent(step, engine.kernels(), threads); });
  }
}

}  // namespace ort_aie::npu_target
