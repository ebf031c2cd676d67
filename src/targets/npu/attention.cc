#include "targets/npu/attention.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "base/error.h"
#include "targets/host/attention_inputs.h"
#include "targets/npu/conversions.h"
#include "targets/npu/designs.h"
#include "targets/npu/kv_copies.h"

namespace ort_aie::npu_target {
namespace {

// A prompt of more queries than one run takes goes in chunks, for which the chunks before are past.
constexpr int64_t kChunkMultiple = 64;  // tokens
// Elements of the sequences `rope` and `append`.
constexpr int64_t kRotaryObject = 256, kRotaryMultiple = 32;

// A copy of the layer's cache that holds rows of the step's present, back in its place once it was
// of use.
class CacheLease {
 public:
  CacheLease(Engine& engine, const AttentionStep& step, std::span<const int64_t> rows,
             const ThreadPool& threads)
      : engine_(engine),
        copies_(CopiesOf(step)),
        copy_(copies_->Take(engine, step, rows, threads)) {}

  KvCopy& operator*() const { return *copy_; }
  KvCopy* operator->() const { return copy_.get(); }
  void PutBack() { copies_->PutBack(engine_, std::move(copy_)); }

 private:
  static std::shared_ptr<KvCopies> CopiesOf(const AttentionStep& step) {
    if (step.kept == nullptr) return std::make_shared<KvCopies>();
    const std::lock_guard lock(step.kept->mutex);
    if (step.kept->object == nullptr) step.kept->object = std::make_shared<KvCopies>();
    return std::static_pointer_cast<KvCopies>(step.kept->object);
  }

  Engine& engine_;
  std::shared_ptr<KvCopies> copies_;
  std::unique_ptr<KvCopy> copy_;
};

size_t Bytes(int64_t elements, DataType type) {
  return elements <= 0 ? 0 : static_cast<size_t>(elements) * SizeOf(type);
}

// All heads of a token's query -> (heads, padded dim), which holds zeros beyond dim.
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
    FromBfloat16(engine.kernels(), o + head * padded, step.dim, step.type,
                 host::Advance(step.output, step.type, (token * step.heads + head) * step.dim));
  }
}

int64_t Window(const AttentionStep& step) { return std::max<int64_t>(step.window, 0); }

// Whether the host has all of the cache and of what goes with new rows, now.
bool CacheOnHost(const Batch& batch, const AttentionStep& step) {
  const int64_t rows = step.batch * step.kv_heads * step.dim;
  for (const auto& [tensor, capacity] : {std::pair{step.past_key, step.past_capacity},
                                         {step.past_value, step.past_capacity},
                                         {step.present_key, step.present_capacity},
                                         {step.present_value, step.present_capacity}}) {
    if (!batch.OnHost(tensor, Bytes(rows * capacity, step.cache_type))) return false;
  }
  return batch.OnHost(step.q_norm, Bytes(step.dim, step.type)) &&
         batch.OnHost(step.k_norm, Bytes(step.dim, step.type));
}

// Whether the sequences `rope` and `append` can do what comes before attention: objects of 256
// elements, of which a token's row is some, a divisor, or, in `rope` alone, one and a part.
bool CanPrepare(const AttentionStep& step, const char* design) {
  const int64_t queries = step.heads * step.dim, keys = step.kv_heads * step.dim;
  return design == kDecode && step.batch == 1 && step.dim == PaddedHeadDim(step.dim) &&
         (step.cos == nullptr || step.rotary_dim % kRotaryMultiple == 0) &&
         (queries >= kRotaryObject || kRotaryObject % queries == 0) &&
         (keys % kRotaryObject == 0 || kRotaryObject % keys == 0);
}

// Of a token, on the device: a query for each head, a key and a value for each KV head.
struct NewRows {
  npu::BufferView query, key, value;
};

// What `projected` becomes when it is normalised, rotated and, in the copy, appended.
NewRows Prepare(Engine& engine, Batch& batch, const AttentionStep& step, const KvCopy& copy,
                const NewRows& projected) {
  const auto& kernels = engine.kernels();
  // The token's cosines, then its sines.
  const npu::BufferView table = batch.Input(kRotaryObject, [&](uint16_t* y) {
    if (step.cos == nullptr) return;
    const int64_t half = step.rotary_dim / 2, first = step.positions[0] * half;
    ToBfloat16(kernels, step.type, host::Advance(step.cos, step.type, first), half, y);
    ToBfloat16(kernels, step.type, host::Advance(step.sin, step.type, first), half, y + half);
  });
  const auto parameters = [&](bool rotated, const void* norm) -> std::map<std::string, int64_t> {
    return {{"tokens", 1},
            {"head_dim", step.dim},
            {"rotary_dim", rotated ? step.rotary_dim : 0},
            {"interleaved", rotated && step.rotary_interleaved ? 1 : 0},
            {"norm", norm != nullptr ? 1 : 0},
            {"eps_bits", FloatBits(step.norm_epsilon)}};
  };
  const auto rotate = [&](npu::BufferView x, int64_t heads, const void* norm, npu::BufferView y) {
    npu::BufferView weight = x;  // of no bytes
    if (norm != nullptr) {
      weight = batch.Input(
          step.dim, [&](uint16_t* to) { ToBfloat16(kernels, step.type, norm, step.dim, to); });
    }
    npu::Invocation rope{"rope",
                         parameters(step.cos != nullptr, norm),
                         {{"x", x}, {"weight", weight}, {"table", table}, {"y", y}}};
    rope.parameters["heads"] = heads;
    batch.Invoke(std::move(rope));
    return y;
  };
  const auto append = [&](npu::BufferView x, int64_t offset) {
    npu::Invocation append{
        "append",
        parameters(false, nullptr),
        {{"x", x}, {"weight", x}, {"table", table}, {"cache", batch.View(copy.buffer(), offset)}}};
    append.parameters["kv_heads"] = step.kv_heads;
    append.parameters["position"] = step.past_length[0];
    append.parameters["capacity"] = copy.capacity();
    batch.Invoke(std::move(append));
  };
  NewRows rows = projected;
  if (step.cos != nullptr || step.q_norm != nullptr) {
    rows.query =
        rotate(projected.query, step.heads, step.q_norm, batch.Scratch(step.heads * step.dim));
  }
  if (step.cos != nullptr || step.k_norm != nullptr) {
    rows.key =
        rotate(projected.key, step.kv_heads, step.k_norm, batch.Result(step.kv_heads * step.dim));
  }
  for (const npu::BufferView view : {rows.key, rows.value}) batch.Keep(view);
  append(rows.key, copy.KeyOffset(0));
  append(rows.value, copy.ValueOffset(0));
  return rows;
}

// The rows that the device has appended -> the present. False where the cache's type does not hold
// all of them as they are (float16, values below 2^-17), so that the device has others.
bool StoreNewRows(Engine& engine, const AttentionStep& step, const uint16_t* keys,
                  const uint16_t* values) {
  const auto& kernels = engine.kernels();
  auto* again = host::Scratch<uint16_t>(host::Purpose::kKeys, step.dim);
  bool same = true;
  for (int64_t head = 0; head < step.kv_heads; ++head) {
    const int64_t row = (head * step.present_capacity + step.past_length[0]) * step.dim;
    for (const auto& [from, present] :
         {std::pair{keys, step.present_key}, {values, step.present_value}}) {
      const uint16_t* x = from + head * step.dim;
      void* to = host::Advance(present, step.cache_type, row);
      FromBfloat16(kernels, x, step.dim, step.cache_type, to);
      ToBfloat16(kernels, step.cache_type, to, step.dim, again);
      same = same && std::memcmp(again, x, static_cast<size_t>(2 * step.dim)) == 0;
    }
  }
  return same;
}

}  // namespace

bool AppendAttention(Engine& engine, Batch& batch, const char* design, const AttentionStep& step,
                     const ThreadPool& threads) {
  const auto find = [&](const void* rows, int64_t stride, int64_t heads) {
    return batch.Find(rows, Bytes((step.batch - 1) * stride + heads * step.dim, step.type));
  };
  const Batch::Source query = find(step.query, step.query_stride, step.heads),
                      key = find(step.key, step.key_stride, step.kv_heads),
                      value = find(step.value, step.value_stride, step.kv_heads);
  const bool by_host = query.on_host() && key.on_host() && value.on_host();
  const bool by_device = query.view && key.view && value.view && batch.IsResult(*key.view) &&
                         batch.IsResult(*value.view) && CanPrepare(step, design);
  if (!(by_host || by_device) || !CacheOnHost(batch, step)) return false;

  {
    const Timed timed(engine, "write present");
    if (by_host) {
      host::WritePresent(step, engine.kernels(), threads);
    } else {
      host::CarryPast(step, threads);
    }
  }
  const auto lease = std::make_shared<CacheLease>(
      engine, step, by_host ? step.total_length : step.past_length, threads);
  const KvCopy& copy = **lease;
  const int64_t padded = PaddedHeadDim(step.dim), width = step.heads * padded;
  NewRows rows;
  if (by_host) {
    rows.query = batch.Input(step.batch * width, [&](uint16_t* y) {
      for (int64_t b = 0; b < step.batch; ++b) StoreQueries(engine, step, b, y + b * width);
    });
  } else {
    rows = Prepare(engine, batch, step, copy, {*query.view, *key.view, *value.view});
  }
  const npu::BufferView q = rows.query;
  const bool whole = padded == step.dim;  // what the device leaves is the output as it is
  const npu::BufferView o = whole ? batch.Output(step.output, step.batch * width, step.type)
                                  : batch.Result(step.batch * width);
  for (int64_t b = 0; b < step.batch; ++b) {
    batch.Invoke({"attention",
                  {{"heads", step.heads},
                   {"kv_heads", step.kv_heads},
                   {"head_dim", padded},
                   {"context", step.total_length[static_cast<size_t>(b)]},
                   {"capacity", copy.capacity()},
                   {"window", Window(step)},
                   {"scale_bits", FloatBits(step.scale)},
                   {"softcap_bits", FloatBits(step.softcap)}},
                  {{"q", {q.argument, q.offset + 2 * b * width}},
                   {"k", batch.View(copy.buffer(), copy.KeyOffset(b))},
                   {"v", batch.View(copy.buffer(), copy.ValueOffset(b))},
                   {"o", {o.argument, o.offset + 2 * b * width}}}});
  }
  batch.Then([&engine, &step, &threads, by_device, whole, rows, o, width,
              lease](const Batch::Results& results) {
    for (int64_t b = 0; b < (whole ? 0 : step.batch); ++b) {
      StoreOutput(engine, step, results[o] + b * width, b);
    }
    if (by_device && StoreNewRows(engine, step, results[rows.key], results[rows.value])) {
      (*lease)->Appended(step);
    } else if (by_device) {
      (*lease)->Update(step, step.total_length, threads);
    }
    lease->PutBack();
  });
  if (!whole) {
    batch.Writes(step.output, step.batch * step.heads * step.dim, step.type, std::nullopt);
  }
  if (by_device) {
    const int64_t present = step.kv_heads * step.present_capacity * step.dim;
    batch.Writes(step.present_key, present, step.cache_type, std::nullopt);
    batch.Writes(step.present_value, present, step.cache_type, std::nullopt);
  }
  return true;
}

void AttendPrompt(Engine& engine, const AttentionStep& step, const ThreadPool& threads) {
  const npu::Manifest* manifest = engine.device().Overlay(kFlowQkv);
  Require(manifest != nullptr, "there is no overlay flow_qkv");
  {
    const Timed timed(engine, "write present");
    host::WritePresent(step, engine.kernels(), threads);
  }
  CacheLease lease(engine, step, step.total_length, threads);
  const int64_t padded = PaddedHeadDim(step.dim), width = step.heads * padded;
  int64_t most_tokens = engine.options().query_bytes / (2 * width);
  if (step.prompt_chunk > 0) most_tokens = std::min(most_tokens, step.prompt_chunk);
  const int64_t most = std::max(kChunkMultiple, most_tokens / kChunkMultiple * kChunkMultiple);
  for (int64_t b = 0; b < step.batch; ++b) {
    const auto i = static_cast<size_t>(b);
    const int64_t tokens = step.total_length[i] - step.past_length[i];
    for (int64_t first = 0; first < tokens; first += most) {
      const int64_t count = std::min(most, tokens - first);
      // Without causality a query sees all keys, those behind its chunk as well.
      const int64_t past = step.causal ? step.past_length[i] + first : step.total_length[i] - count;
      npu::Invocation attention{"attention",
                                {{"heads", step.heads},
                                 {"kv_heads", step.kv_heads},
                                 {"head_dim", padded},
                                 {"prompt", count},
                                 {"past", past},
                                 {"capacity", lease->capacity()},
                                 {"window", Window(step)},
                                 {"causal", step.causal ? 1 : 0},
                                 {"scale_bits", FloatBits(step.scale)},
                                 {"softcap_bits", FloatBits(step.softcap)}},
                                {{"q", {0, 0}},
                                 {"k", {2, lease->KeyOffset(b)}},
                                 {"v", {2, lease->ValueOffset(b)}},
                                 {"o", {1, 0}}}};
      const auto bytes = static_cast<size_t>(ArgumentBytes(*manifest, attention, "q"));
      const auto q = engine.device().Allocate(bytes), o = engine.device().Allocate(bytes);
      auto* queries = reinterpret_cast<uint16_t*>(q->host());
      const int64_t token = b * step.sequence + first;
      threads.ParallelFor(
          count, [&](int64_t t) { StoreQueries(engine, step, token + t, queries + t * width); });
      const auto used = static_cast<size_t>(2 * count * width);
      std::memset(q->host() + used, 0, bytes - used);
      q->ToDevice(0, bytes);
      Buffer* const arguments[] = {q.get(), o.get(), lease->buffer().get()};
      engine.Run(kFlowQkv, {std::move(attention)}, arguments);
      o->FromDevice(0, used);
      const auto* outputs = reinterpret_cast<const uint16_t*>(o->host());
      threads.ParallelFor(
          count, [&](int64_t t) { StoreOutput(engine, step, outputs + t * width, token + t); });
    }
    const int64_t token_bytes = step.heads * step.dim * static_cast<int64_t>(SizeOf(step.type));
    if (tokens < step.sequence) {
      std::memset(static_cast<uint8_t*>(step.output) + (b * step.sequence + tokens) * token_bytes,
                  0, static_cast<size_t>((step.sequence - tokens) * token_bytes));
    }
  }
  lease.PutBack();
}

}  // namespace ort_aie::npu_target
