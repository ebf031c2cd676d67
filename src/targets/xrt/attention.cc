#include "targets/xrt/attention.h"

#include <algorithm>
#include <cstring>

#include "ops/error.h"
#include "targets/host/attention_inputs.h"
#include "targets/xrt/conversions.h"
#include "targets/xrt/kv_copies.h"
#include "targets/xrt/projection.h"

namespace ort_aie::xrt {
namespace {

constexpr int64_t kMaxDim = 256;
// A prompt of more queries than one run takes goes in chunks, for which the chunks before are past.
constexpr int64_t kChunkMultiple = 64;  // tokens

// A copy of the layer's cache that holds the step's present, back in its place once it was of use.
class CacheLease {
 public:
  CacheLease(Engine& engine, const AttentionStep& step, const ThreadPool& threads)
      : engine_(engine), copies_(CopiesOf(step)), copy_(copies_->Take(engine, step, threads)) {}

  const KvCopy& operator*() const { return *copy_; }
  const KvCopy* operator->() const { return copy_.get(); }
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

size_t Bytes(const AttentionStep& step, int64_t elements, DataType type) {
  return elements <= 0 ? 0 : static_cast<size_t>(step.batch * elements) * SizeOf(type);
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

}  // namespace

std::string WhyNotAttention(Engine& engine, const AttentionStep& step) {
  if (step.windowed_cache) return "a cache that keeps a window only";
  if (step.key_sequence != step.sequence) return "keys of another sequence than the queries";
  if (!step.visible_keys.empty()) return "an attention mask with hidden keys";
  if (step.bias != nullptr) return "attention_bias";
  if (step.head_sink != nullptr) return "head_sink";
  if (step.smooth_softmax) return "smooth_softmax";
  if (step.dim > kMaxDim) return "heads of more than 256 dimensions";
  if (!step.causal && step.window > 0) return "a window without causality";
  for (size_t b = 0; b < step.total_length.size(); ++b) {
    if (step.total_length[b] > step.present_capacity) return "more tokens than the cache holds";
  }
  if (step.sequence == 1) {
    if (AttentionDesign(engine) == nullptr) return "no overlay decode or flow_kv";
  } else if (engine.device().Overlay(kFlowQkv) == nullptr) {
    return "no overlay flow_qkv";
  }
  return "";
}

const char* AttentionDesign(Engine& engine) {
  if (engine.device().Overlay(kDecode) != nullptr) return kDecode;
  return engine.device().Overlay(kFlowKv) != nullptr ? kFlowKv : nullptr;
}

bool AppendAttention(Engine& engine, Batch& batch, const AttentionStep& step,
                     const ThreadPool& threads) {
  const int64_t present = step.kv_heads * step.present_capacity * step.dim;
  const int64_t past = step.kv_heads * step.past_capacity * step.dim;
  // Keys and values go through the host, so they and the queries are read there.
  const bool ready = batch.OnHost(step.query, Bytes(step, step.query_stride, step.type)) &&
                     batch.OnHost(step.key, Bytes(step, step.key_stride, step.type)) &&
                     batch.OnHost(step.value, Bytes(step, step.value_stride, step.type)) &&
                     batch.OnHost(step.past_key, Bytes(step, past, step.cache_type)) &&
                     batch.OnHost(step.past_value, Bytes(step, past, step.cache_type)) &&
                     batch.OnHost(step.present_key, Bytes(step, present, step.cache_type)) &&
                     batch.OnHost(step.present_value, Bytes(step, present, step.cache_type));
  if (!ready || !batch.HasRoom(1)) return false;
  {
    const Timed timed(engine, "write present");
    host::WritePresent(step, engine.kernels(), threads);
  }
  const auto lease = std::make_shared<CacheLease>(engine, step, threads);
  const KvCopy& copy = **lease;
  const int64_t padded = PaddedHeadDim(step.dim), width = step.heads * padded;
  const npu::BufferView q = batch.Input(step.batch * width, [&](uint16_t* y) {
    for (int64_t b = 0; b < step.batch; ++b) StoreQueries(engine, step, b, y + b * width);
  });
  const npu::BufferView o = batch.Result(step.batch * width);
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
                   {"k", batch.Argument(copy.buffer(), copy.KeyOffset(b))},
                   {"v", batch.Argument(copy.buffer(), copy.ValueOffset(b))},
                   {"o", {o.argument, o.offset + 2 * b * width}}}});
  }
  batch.Then([&engine, &step, o, width, lease](const Batch::Results& results) {
    for (int64_t b = 0; b < step.batch; ++b) {
      StoreOutput(engine, step, results[o] + b * width, b);
    }
    lease->PutBack();
  });
  batch.Writes(step.output, Bytes(step, step.heads * step.dim, step.type),
               padded == step.dim ? std::optional<npu::BufferView>(o) : std::nullopt);
  return true;
}

void AttendPrompt(Engine& engine, const AttentionStep& step, const ThreadPool& threads) {
  const npu::Manifest* manifest = engine.device().Overlay(kFlowQkv);
  Require(manifest != nullptr, "there is no overlay flow_qkv");
  {
    const Timed timed(engine, "write present");
    host::WritePresent(step, engine.kernels(), threads);
  }
  CacheLease lease(engine, step, threads);
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
      threads.ParallelFor(count, [&](int64_t t) noexcept {
        StoreQueries(engine, step, token + t, queries + t * width);
      });
      const auto used = static_cast<size_t>(2 * count * width);
      std::memset(q->host() + used, 0, bytes - used);
      q->ToDevice(0, bytes);
      Buffer* const arguments[] = {q.get(), o.get(), lease->buffer().get()};
      engine.Run(kFlowQkv, {std::move(attention)}, arguments);
      o->FromDevice(0, used);
      const auto* outputs = reinterpret_cast<const uint16_t*>(o->host());
      threads.ParallelFor(count, [&](int64_t t) noexcept {
        StoreOutput(engine, step, outputs + t * width, token + t);
      });
    }
    const int64_t token_bytes = step.heads * step.dim * static_cast<int64_t>(SizeOf(step.type));
    if (tokens < step.sequence) {
      std::memset(static_cast<uint8_t*>(step.output) + (b * step.sequence + tokens) * token_bytes,
                  0, static_cast<size_t>((step.sequence - tokens) * token_bytes));
    }
  }
  lease.PutBack();
}

}  // namespace ort_aie::xrt
