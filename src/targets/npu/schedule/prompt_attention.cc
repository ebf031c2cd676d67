// Attention of several query rows. If the batch before it leaves queries, keys and values on the
// device, GEMM's overlay rotates them and appends the new keys and values to the copy of the cache
// there, and the attention and what follows it join the batch. Otherwise the host prepares them.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "targets/host/attention_inputs.h"
#include "targets/npu/attention_rows.h"
#include "targets/npu/conversions.h"
#include "targets/npu/schedule/attention.h"
#include "targets/npu/schedule/designs.h"
#include "targets/trace.h"

namespace ort_aie::npu_target {
namespace {

// A prompt with more queries than one run can take is divided into chunks; for each, the chunks
// before it are past.
constexpr int64_t kChunkMultiple = 64;  // tokens
constexpr int64_t kEight = 8;           // keys that are adjacent in a cache
constexpr int64_t kLeastColumns = 128;  // of the heads that `rotate` and `append_rows` take
constexpr int64_t kRotaryMultiple = 32;

npu::Invocation AttentionOf(const AttentionStep& step, int64_t capacity, int64_t count,
                            int64_t past) {
  return {"attention",
          {{"heads", step.heads},
           {"kv_heads", step.kv_heads},
           {"head_dim", PaddedHeadDim(step.dim)},
           {"prompt", count},
           {"past", past},
           {"capacity", capacity},
           {"window", std::max<int64_t>(step.window, 0)},
           {"causal", step.causal ? 1 : 0},
           {"scale_bits", FloatBits(step.scale)},
           {"softcap_bits", FloatBits(step.softcap)}},
          {}};
}

}  // namespace

int64_t TokensAtATime(const DeviceFacts& facts, const AttentionStep& step) {
  int64_t most = facts.query_bytes / (2 * step.heads * PaddedHeadDim(step.dim));
  if (step.prompt_chunk > 0) most = std::min(most, step.prompt_chunk);
  most = std::max(kChunkMultiple, most / kChunkMultiple * kChunkMultiple);
  return std::min(most, step.sequence);
}

namespace {

// --- on the device ---

// Where the cosines of the tokens are, then their sines, row by row.
npu::BufferView PromptTable(Batch& batch, const AttentionStep& step, int64_t elements) {
  const int64_t half = step.rotary_dim / 2, first = step.positions.front();
  const auto fill = [&step, half](uint16_t* y) {
    const host::Kernels& kernels = host::SelectedKernels();
    for (int64_t t = 0; t < step.sequence; ++t) {
      const int64_t at = step.positions[static_cast<size_t>(t)] * half;
      for (const void* table : {step.cos, step.sin}) {
        ToBfloat16(kernels, step.type, Advance(table, step.type, at), half, y);
        y += half;
      }
    }
  };
  bool in_order = true;
  for (int64_t t = 0; t < step.sequence; ++t) {
    in_order = in_order && step.positions[static_cast<size_t>(t)] == first + t;
  }
  if (!in_order) return batch.Input(elements, fill);
  // Layers with the same table share it.
  return batch.SharedInput({Advance(step.cos, step.type, first * half),
                            Advance(step.sin, step.type, first * half), elements},
                           elements, fill);
}

// Rotates queries, and appends keys and values to the copy of the cache.
class PromptPreparation {
 public:
  PromptPreparation(const DeviceFacts& facts, Batch& batch, const AttentionStep& step)
      : gemm_(facts.prompts.gemm),
        manifest_(*facts.overlay(gemm_)),
        batch_(batch),
        step_(step),
        rows_(step.sequence),
        whole_(RoundUp(step.sequence, kEight)) {}

  // Rows of heads on the device, their norm, or null, and whether they are rotated.
  struct Heads {
    npu::BufferView first;
    int64_t stride, count;
    const void* norm;
    bool rotated;
  };

  // Memory for the results, with room for `elements`, which are zeros after them.
  npu::BufferView Rotate(const Heads& heads, int purpose, int64_t elements) {
    npu::Invocation rotate{"rotate", Parameters("heads", heads, rows_), {}};
    const npu::BufferView y = batch_.ZerosAfter(purpose, rows_ * heads.count * step_.dim, elements);
    Invoke(std::move(rotate), heads, "y", y);
    return y;
  }

  // Only groups of eight keys are appended; the last has zeros after the new ones, because bfp16
  // blocks of values share an exponent.
  void Append(Heads heads, int purpose, npu::BufferView cache, int64_t position, int64_t capacity) {
    if (whole_ != rows_) {
      const int64_t width = heads.count * step_.dim;
      heads = {Rotate(heads, purpose, whole_ * width), width, heads.count, nullptr, false};
    }
    Invoke(AppendOf(heads, position, capacity), heads, "cache", cache);
  }

  // Why the overlay does not append such heads there; empty if it does.
  std::string Unmet(const Heads& heads, int64_t position, int64_t capacity) const {
    return npu::UnmetRequirement(manifest_, AppendOf(heads, position, capacity));
  }

 private:
  std::map<std::string, int64_t> Parameters(const char* count, const Heads& heads,
                                            int64_t rows) const {
    return {{"M", rows},
            {count, heads.count},
            {"head_dim", step_.dim},
            {"rotary_dim", heads.rotated ? step_.rotary_dim : 0},
            {"interleaved", heads.rotated && step_.rotary_interleaved ? 1 : 0},
            {"norm", heads.norm != nullptr ? 1 : 0},
            {"eps_bits", FloatBits(step_.norm_epsilon)},
            {"x_stride", heads.stride}};
  }

  npu::Invocation AppendOf(const Heads& heads, int64_t position, int64_t capacity) const {
    npu::Invocation append{"append_rows", Parameters("kv_heads", heads, whole_), {}};
    append.parameters["position"] = position;
    append.parameters["capacity"] = capacity;
    return append;
  }

  void Invoke(npu::Invocation invocation, const Heads& heads, const char* result,
              npu::BufferView to) {
    // What has no bytes is anywhere.
    npu::BufferView weight = heads.first, table = heads.first;
    if (heads.norm != nullptr) {
      weight = batch_.Input(step_.dim, [&step = step_, norm = heads.norm](uint16_t* y) {
        ToBfloat16(host::SelectedKernels(), step.type, norm, step.dim, y);
      });
    }
    if (heads.rotated) {
      table = PromptTable(batch_, step_, npu::ArgumentBytes(manifest_, invocation, "table") / 2);
    }
    invocation.arguments = {{"x", heads.first}, {"weight", weight}, {"table", table}, {result, to}};
    batch_.Invoke(gemm_, std::move(invocation));
  }

  const Design gemm_;
  const npu::Manifest& manifest_;
  Batch& batch_;
  const AttentionStep& step_;
  const int64_t rows_, whole_;
};

enum Purpose : int { kQueries, kKeys, kValues };

}  // namespace

Reason WhyHostPrepares(const DeviceFacts& facts, const AttentionStep& step) {
  if (!HasSequences(facts, facts.prompts.gemm, {"rotate", "append_rows"})) {
    return Reason::kHostPrepares;
  }
  if (PaddedHeadDim(step.dim) != step.dim) return Reason::kOtherHeads;
  if (step.sequence < kGemmLeastRows) return Reason::kFewKeys;
  const bool one = step.batch == 1 && step.causal && step.key_sequence == step.sequence &&
                   step.total_length[0] - step.past_length[0] == step.sequence;
  const bool norms = step.q_norm != nullptr || step.k_norm != nullptr;
  const bool rotated =
      step.cos == nullptr || (step.rotary_dim % kRotaryMultiple == 0 && !step.mixed_positions);
  const bool wide = std::min(step.heads, step.kv_heads) * step.dim >= kLeastColumns;
  const bool prepared = one && rotated && wide && !step.key_scales && !step.value_scales &&
                        !(norms && step.norm_after_rotary);
  return prepared ? Reason::kNone : Reason::kHostPrepares;
}

int64_t TokensTogether(const DeviceFacts& facts, const AttentionStep& step) {
  if (step.sequence == 1) return 1;
  return WhyHostPrepares(facts, step) == Reason::kNone ? step.sequence : TokensAtATime(facts, step);
}

bool AppendPromptAttention(Scheduling& scheduling, Batch& batch, const AttentionStep& step) {
  const DeviceFacts& facts = scheduling.facts;
  const auto find = [&](const void* rows, int64_t stride, int64_t heads) {
    const int64_t elements = (step.batch * step.sequence - 1) * stride + heads * step.dim;
    return batch.tensors.Find(rows, static_cast<size_t>(BytesOf(step.type, elements)));
  };
  const auto query = find(step.query, step.query_stride, step.heads).view,
             key = find(step.key, step.key_stride, step.kv_heads).view,
             value = find(step.value, step.value_stride, step.kv_heads).view;
  if (!query || !key || !value || !RestOnHost(batch, step)) return false;
  scheduling.divides = WhyHostPrepares(facts, step);
  if (scheduling.divides != Reason::kNone) return false;

  const CachePlace place = scheduling.contents.Cache(step);
  const Lengths lengths = LengthsOf(step, 0, step.sequence);
  const int64_t position = step.past_length[0] - place.rows.FirstTokenFor(step, 0, lengths);
  const int64_t capacity = place.rows.capacity();
  if (position < 0 || position % kEight != 0) {
    scheduling.divides = Reason::kUnalignedKeys;
    return false;
  }
  const bool rotated = step.cos != nullptr;
  PromptPreparation preparation(facts, batch, step);
  const PromptPreparation::Heads queries{*query, step.query_stride, step.heads, step.q_norm,
                                         rotated},
      keys{*key, step.key_stride, step.kv_heads, step.k_norm, rotated},
      values{*value, step.value_stride, step.kv_heads, step.v_norm, false};
  if (!preparation.Unmet(keys, position, capacity).empty()) {
    scheduling.divides = Reason::kRefused;
    return false;
  }

  const CacheRows& rows = AppendCache(batch, step, place).rows;
  // Chunks, with the rows of a last tile that is not full.
  const npu::Manifest& overlay = *facts.overlay(kFlowQkv);
  const int64_t most = TokensAtATime(facts, step), width = step.heads * step.dim;
  std::vector<std::pair<int64_t, npu::Invocation>> chunks;  // with their first tokens
  int64_t elements = 0;
  for (int64_t t = 0; t < step.sequence; t += most) {
    const int64_t count = std::min(most, step.sequence - t);
    chunks.emplace_back(t, AttentionOf(step, capacity, count, position + t));
    elements =
        std::max(elements, t * width + npu::ArgumentBytes(overlay, chunks.back().second, "q") / 2);
  }
  const npu::BufferView q = preparation.Rotate(queries, kQueries, elements);
  const npu::BufferView k = batch.memory.View(rows.buffer(), rows.KeyOffset(0)),
                        v = batch.memory.View(rows.buffer(), rows.ValueOffset(0));
  preparation.Append(keys, kKeys, k, position, capacity);
  preparation.Append(values, kValues, v, position, capacity);
  const npu::BufferView o =
      batch.OutputRows(step.output, step.sequence * width, step.type, elements);
  for (auto& [t, attention] : chunks) {
    const auto at = [&](npu::BufferView view) {
      return npu::BufferView{view.argument, view.offset + 2 * t * width};
    };
    attention.arguments = {{"q", at(q)}, {"k", k}, {"v", v}, {"o", at(o)}};
    batch.Invoke(kFlowQkv, std::move(attention));
  }
  return true;
}

namespace {

// --- by the host ---

// Batches of a prompt's queries, each when the device has all of its keys.
class Prompt {
 public:
  Prompt(Scheduling& scheduling, const AttentionStep& step, Stage& stage)
      : step_(step),
        threads_(scheduling.threads),
        manifest_(scheduling.facts.overlay(kFlowQkv)),
        stage_(stage) {
    Require(manifest_ != nullptr, "there is no overlay flow_qkv");
  }

  // The host does it before the next batch, or at the end.
  void Prepare(std::function<void()> execute) { before_next_.push_back(std::move(execute)); }

  // Attends to `total` keys (0 if none are visible) with tokens [first, end) of a batch row.
  void Attend(const CacheRows& cache, int64_t b, int64_t first, int64_t end, int64_t total) {
    const auto i = static_cast<size_t>(b);
    // Queries before the first visible key see no key.
    const int64_t begin =
        step_.causal ? std::clamp(cache.FirstToken(i) - step_.past_length[i], first, end) : first;
    const int64_t keys = total - cache.FirstToken(i);
    Zero(b, first, begin);
    for (int64_t t = begin; t < end;) {
      // Without causality a query sees all keys, including those after its chunk.
      const int64_t count = step_.causal ? end - t : std::min(end - t, keys);
      const int64_t past =
          step_.causal ? step_.past_length[i] + t - cache.FirstToken(i) : keys - count;
      Run(cache, b, t, count, past);
      t += count;
    }
  }

  void Zero(int64_t b, int64_t first, int64_t end) {
    if (first == end) return;
    Prepare([&step = step_, b, first, end] {
      const auto bytes = static_cast<size_t>(BytesOf(step.type, step.heads * step.dim));
      std::memset(static_cast<uint8_t*>(step.output) +
                      static_cast<size_t>(b * step.sequence + first) * bytes,
                  0, static_cast<size_t>(end - first) * bytes);
    });
  }

  // Once all queries are there.
  void End() {
    if (!before_next_.empty()) Next();
  }

 private:
  Batch& Next() {
    Batch& batch = stage_.Add(threads_);
    for (auto& execute : before_next_) batch.Prepare(std::move(execute));
    before_next_.clear();
    return batch;
  }

  void Run(const CacheRows& cache, int64_t b, int64_t first, int64_t count, int64_t past) {
    const int64_t padded = PaddedHeadDim(step_.dim), width = step_.heads * padded;
    npu::Invocation attention = AttentionOf(step_, cache.capacity(), count, past);
    // With the rows of a last tile that is not full.
    const int64_t elements = npu::ArgumentBytes(*manifest_, attention, "q") / 2;
    const int64_t token = b * step_.sequence + first;
    Batch& batch = Next();
    const npu::BufferView q = batch.Input(elements, [&step = step_, &threads = threads_, token,
                                                     count, width](uint16_t* y) {
      threads.ParallelFor(count, [&](int64_t t) { StoreQueries(step, token + t, y + t * width); });
    });
    const npu::BufferView o = batch.memory.Scratch(elements);
    batch.memory.Keep(o, count * width);
    attention.arguments = {{"q", q},
                           {"k", batch.memory.View(cache.buffer(), cache.KeyOffset(b))},
                           {"v", batch.memory.View(cache.buffer(), cache.ValueOffset(b))},
                           {"o", o}};
    batch.Invoke(kFlowQkv, std::move(attention));
    batch.Then([&step = step_, &threads = threads_, o, token, count,
                width](const Batch::Results& results) {
      const uint16_t* const outputs = results[o];
      threads.ParallelFor(count,
                          [&](int64_t t) { StoreOutput(step, outputs + t * width, token + t); });
    });
  }

  const AttentionStep& step_;
  const ThreadPool& threads_;
  const npu::Manifest* const manifest_;
  Stage& stage_;
  std::vector<std::function<void()>> before_next_;
};

}  // namespace

void AttendPrompt(Scheduling& scheduling, const AttentionStep& step, Stage& stage) {
  const ThreadPool& threads = scheduling.threads;
  Prompt prompt(scheduling, step, stage);
  if (!step.windowed_cache) {
    prompt.Prepare([&step, &threads] {
      const TraceSpan traced("host", "write present");
      host::WritePresent(step, host::SelectedKernels(), threads);
    });
  }
  const CachePlace place = scheduling.contents.Cache(step);
  CacheRows rows = place.rows;  // as it will be
  const int64_t most = TokensAtATime(scheduling.facts, step);
  for (int64_t first = 0; first < step.sequence; first += most) {
    const Range tokens{first, std::min(first + most, step.sequence)};
    // Without causality, queries see later keys too.
    const Lengths lengths =
        LengthsOf(step, step.causal ? first : 0, step.causal ? tokens.end : step.sequence);
    prompt.Prepare([&step, &threads, copy = place.copy, tokens, lengths] {
      if (!step.windowed_cache) {
        return copy->Hold(step, lengths, lengths.total, InPresent(step), threads);
      }
      FreshRows fresh(step, tokens);
      {
        const TraceSpan traced("host", "write present");
        host::WriteNewRows(step, host::SelectedKernels(), threads, tokens, fresh.keys(),
                           fresh.values());
      }
      copy->Hold(step, lengths, lengths.total, fresh.Of(step), threads);
    });
    rows.Advance(step, lengths, lengths.total);
    for (int64_t b = 0; b < step.batch; ++b) {
      const auto i = static_cast<size_t>(b);
      // Tokens after a shorter prompt are padding.
      const int64_t own = step.total_length[i] - step.past_length[i];
      const int64_t end = std::clamp(own, first, tokens.end);
      prompt.Attend(rows, b, first, end, lengths.total[i]);
      prompt.Zero(b, end, tokens.end);
    }
  }
  if (step.windowed_cache) {
    prompt.Prepare([&step, &threads] {
      const TraceSpan traced("host", "write present");
      host::WriteWindowedPresent(step, host::SelectedKernels(), threads);
    });
  }
  prompt.End();
}

}  // namespace ort_aie::npu_target
