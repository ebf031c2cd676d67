#include "targets/npu/fused_decode/token_memory.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "q4nx/layout.h"
#include "targets/host/attention_inputs.h"
#include "targets/npu/conversions.h"

namespace ort_aie::npu_target {
namespace {

using fused_decode::DecoderPlan;
using fused_decode::kElementBytes;
using fused_decode::MatrixRows;

void Send(Buffer& buffer, int64_t first, int64_t elements) {
  buffer.ToDevice(static_cast<size_t>(kElementBytes * first),
                  static_cast<size_t>(kElementBytes * elements));
}
void Fetch(Buffer& buffer, int64_t first, int64_t elements) {
  buffer.FromDevice(static_cast<size_t>(kElementBytes * first),
                    static_cast<size_t>(kElementBytes * elements));
}

MatrixRows RowsOf(const MatMulStep& step) { return {step.weights, step.n, step.form}; }

void CountWidened(Engine& engine, const DecoderPlan& decoder) {
  int64_t widened = 0;
  const auto count = [&](const MatMulStep& step) {
    if (step.form != q4nx::kShipping) widened += step.up_weights != nullptr ? 2 : 1;
  };
  for (const DecoderLayer& layer : decoder.steps.layers) {
    for (const MatMulStep* const part : layer.qkv) count(*part);
    for (const MatMulStep* const step : {layer.output, layer.gate, layer.down}) count(*step);
  }
  count(decoder.head());
  if (widened == 0) return;
  engine.Count([&](ExecutorCounters& counters) {
    counters.widened["an overlay that mlir-air built"] += widened;
  });
}

// The host's row of the past.
const uint8_t* PastRow(const AttentionStep& step, bool value, int64_t head, int64_t position) {
  const auto* const rows = static_cast<const uint8_t*>(value ? step.past_value : step.past_key);
  return rows + BytesOf(step.cache_type, (head * step.past_capacity + position) * step.dim);
}

}  // namespace

void TokenMemory::Token(const DecoderPlan& decoder, const ThreadPool& threads) {
  const std::lock_guard lock(mutex_);
  UseWindow(decoder.length());
  Prepare(decoder, threads);
  SendToken(decoder);
  SendCache(decoder.steps.layers, threads);

  fused_decode::SetLength(window_->words, decoder.length(), stream_->words());
  const fused_decode::WordSpan variable = fused_decode::VariableWords(window_->words);
  std::vector<Buffer*> buffers = {x_.get(), weights_.front().get(), rms_.get(), y_.get(),
                                  cache_.get()};
  for (size_t i = 1; i < weights_.size(); ++i) buffers.push_back(weights_[i].get());
  stream_->Run(variable.begin, variable.end, buffers);

  Fetch(*y_, geometry().logits_offset(), decoder.head().n);
  const int64_t position = decoder.length() - 1;
  for (size_t layer = 0; layer < decoder.steps.layers.size(); ++layer) {
    for (const bool value : {false, true}) {
      for (int64_t group = 0; group < fused_decode::kAttentionGroups; ++group) {
        const int64_t head = group * geometry().kv_heads / fused_decode::kAttentionGroups;
        Fetch(*cache_, KvOffset(static_cast<int64_t>(layer), value, head, position),
              geometry().region_width());
      }
    }
  }
  StoreLogits(decoder);
  StoreRows(decoder.steps.layers, threads);
}

void TokenMemory::UseWindow(int64_t length) {
  const auto window =
      std::ranges::lower_bound(package_.windows, length, {}, &fused_decode::Window::positions);
  Require(window != package_.windows.end(), "no window has room for ", length, " tokens");
  if (window_ == &*window) return;
  // Free these before the next ones are allocated: a device has few contexts, and nothing else uses
  // this one.
  window_ = nullptr;
  stream_ = nullptr;
  cache_ = nullptr;
  stream_ = engine_.device().Load({.path = window->overlay.string(),
                                   .uuid = window->uuid,
                                   .kernel = window->kernel,
                                   .device = package_.device,
                                   .buffers = 4 + geometry().weight_elements().size()},
                                  window->words.words);
  // The rows have other places now, so all are sent again.
  positions_ = window->positions;
  const int64_t elements = geometry().kv_elements(positions_);
  cache_ = engine_.device().Allocate(static_cast<size_t>(kElementBytes * elements));
  std::memset(cache_->host(), 0, static_cast<size_t>(kElementBytes * elements));
  Send(*cache_, 0, elements);
  marks_.assign(static_cast<size_t>(geometry().layers * 2 * geometry().kv_heads * positions_),
                RowMark{});
  window_ = &*window;
}

RowMark& TokenMemory::MarkOfRow(int64_t layer, bool value, int64_t head, int64_t position) {
  const int64_t heads = (2 * layer + (value ? 1 : 0)) * geometry().kv_heads + head;
  return marks_[static_cast<size_t>(heads * positions_ + position)];
}

void TokenMemory::Prepare(const DecoderPlan& decoder, const ThreadPool& threads) {
  if (rms_ != nullptr) return;
  const auto allocate = [&](int64_t elements) {
    return engine_.device().Allocate(static_cast<size_t>(kElementBytes * elements));
  };
  PackWeights(decoder, threads);
  x_ = allocate(geometry().hidden);
  y_ = allocate(geometry().y_elements());
  std::shared_ptr<Buffer> rms = allocate(geometry().rms_elements());
  WriteNorms(decoder, *rms);
  rms_ = std::move(rms);  // complete now
}

void TokenMemory::PackWeights(const DecoderPlan& decoder, const ThreadPool& threads) {
  const TraceSpan traced("host", "pack weights");
  CountWidened(engine_, decoder);
  weights_.clear();
  for (const int64_t elements : geometry().weight_elements()) {
    weights_.push_back(engine_.device().Allocate(static_cast<size_t>(kElementBytes * elements)));
  }
  const int64_t layer_bytes = kElementBytes * geometry().layer_elements();
  const int64_t group = geometry().group == 0 ? geometry().layers : geometry().group;
  threads.ParallelFor(geometry().layers, [&](int64_t i) {
    const DecoderLayer& layer = decoder.steps.layers[static_cast<size_t>(i)];
    fused_decode::LayerWeights matrices{
        .qkv = {},
        .o = RowsOf(*layer.output),
        .up = {layer.gate->up_weights, layer.gate->n, layer.gate->form},
        .gate = RowsOf(*layer.gate),
        .down = RowsOf(*layer.down)};
    for (const MatMulStep* const part : layer.qkv) matrices.qkv.push_back(RowsOf(*part));
    fused_decode::PackLayer(
        geometry(), package_.channels, matrices,
        weights_[static_cast<size_t>(i / group)]->host() + i % group * layer_bytes);
  });
  const int64_t chunk_bytes = fused_decode::HeadChunkBytes(geometry());
  uint8_t* const head =
      weights_.back()->host() + (geometry().group == 0 ? geometry().layers * layer_bytes : 0);
  threads.ParallelFor(geometry().head_chunks, [&](int64_t chunk) {
    fused_decode::PackHeadChunk(geometry(), package_.channels, RowsOf(decoder.head()), chunk,
                                head + chunk * chunk_bytes);
  });
  for (const std::shared_ptr<Buffer>& buffer : weights_) buffer->ToDevice(0, buffer->size());
}

void TokenMemory::WriteNorms(const DecoderPlan& decoder, Buffer& rms) {
  const auto& kernels = engine_.kernels();
  const auto write = [&](const void* norm, int64_t n, int64_t offset) {
    ToBfloat16(kernels, decoder.type(), norm, n, Elements(rms, offset));
  };
  for (int64_t i = 0; i < geometry().layers; ++i) {
    const DecoderLayer& layer = decoder.steps.layers[static_cast<size_t>(i)];
    const std::vector<const void*> norms = fused_decode::NormsOf(layer);
    for (int64_t norm = 0; norm < geometry().norms; ++norm) {
      write(norms[static_cast<size_t>(norm)], geometry().hidden, geometry().norm_offset(i, norm));
    }
    if (!geometry().head_norms) continue;
    const int64_t slab = geometry().rotary_offset(i) + geometry().rotary_dim;
    write(layer.attention->q_norm, geometry().head_dim, slab);
    write(layer.attention->k_norm, geometry().head_dim, slab + geometry().head_dim);
  }
  write(decoder.head().norm_weight, geometry().hidden, geometry().last_norm_offset());
  Send(rms, 0, geometry().rms_elements());
}

void TokenMemory::SendToken(const DecoderPlan& decoder) {
  const auto& kernels = engine_.kernels();
  ToBfloat16(kernels, decoder.type(), decoder.x(), geometry().hidden, Elements(*x_, 0));
  Send(*x_, 0, geometry().hidden);
  const int64_t half = geometry().rotary_dim / 2;
  for (int64_t slab = 0; slab < geometry().rotary_slabs(); ++slab) {
    const AttentionStep& step = *decoder.steps.layers[static_cast<size_t>(slab)].attention;
    const int64_t row = step.positions[0] * half;
    uint16_t* const to = Elements(*rms_, geometry().rotary_offset(slab));
    ToBfloat16(kernels, step.type, Advance(step.cos, step.type, row), half, to);
    ToBfloat16(kernels, step.type, Advance(step.sin, step.type, row), half, to + half);
  }
  Send(*rms_, geometry().rotary_offset(0), geometry().rotary_slabs() * geometry().rotary_slab());
}

void TokenMemory::SendCache(const Layers& layers, const ThreadPool& threads) {
  const int64_t group_heads = geometry().kv_heads / fused_decode::kAttentionGroups;
  const int64_t past = layers.front().attention->past_length[0];
  const int64_t regions = geometry().layers * 2 * fused_decode::kAttentionGroups;
  std::vector<Range> changed(static_cast<size_t>(regions), Range{past, 0});
  threads.ParallelFor(regions, [&](int64_t region) {
    const int64_t layer = region / (2 * fused_decode::kAttentionGroups);
    const bool value = region / fused_decode::kAttentionGroups % 2 != 0;
    const int64_t first_head = region % fused_decode::kAttentionGroups * group_heads;
    const AttentionStep& step = *layers[static_cast<size_t>(layer)].attention;
    const int64_t bytes = BytesOf(step.cache_type, step.dim);
    Range& rows = changed[static_cast<size_t>(region)];
    for (int64_t head = first_head; head < first_head + group_heads; ++head) {
      for (int64_t position = 0; position < past; ++position) {
        const uint8_t* const row = PastRow(step, value, head, position);
        RowMark& known = MarkOfRow(layer, value, head, position);
        const RowMark mark = MarkOf(row, bytes);
        if (known == mark) continue;
        known = mark;
        ToBfloat16(engine_.kernels(), step.cache_type, row, step.dim,
                   Elements(*cache_, KvOffset(layer, value, head, position)));
        rows = {std::min(rows.first, position), std::max(rows.end, position + 1)};
      }
    }
  });
  int64_t sent = 0;
  for (int64_t region = 0; region < regions; ++region) {
    const Range& rows = changed[static_cast<size_t>(region)];
    if (rows.first >= rows.end) continue;
    const int64_t width = geometry().region_width();
    Send(*cache_, (region * positions_ + rows.first) * width, (rows.end - rows.first) * width);
    sent += (rows.end - rows.first) * group_heads;
  }
  engine_.Count([&](ExecutorCounters& counters) {
    counters.cache_rows_sent += sent;
    counters.cache_rows_kept += regions * group_heads * past - sent;
  });
}

void TokenMemory::StoreLogits(const DecoderPlan& decoder) {
  FromBfloat16(engine_.kernels(), Elements(*y_, geometry().logits_offset()), decoder.head().n,
               decoder.type(), decoder.head().y);
}

void TokenMemory::StoreRows(const Layers& layers, const ThreadPool& threads) {
  const auto& kernels = engine_.kernels();
  const int64_t heads = geometry().kv_heads, dim = geometry().head_dim;
  std::vector<uint8_t> fresh;  // keys, values (kv_heads, dim)
  std::vector<uint16_t> again(static_cast<size_t>(dim));
  for (int64_t layer = 0; layer < geometry().layers; ++layer) {
    const AttentionStep& step = *layers[static_cast<size_t>(layer)].attention;
    const int64_t row_bytes = BytesOf(step.cache_type, dim), position = step.past_length[0];
    fresh.resize(static_cast<size_t>(2 * heads * row_bytes));
    for (int64_t i = 0; i < 2 * heads; ++i) {
      const bool value = i >= heads;
      const uint16_t* const row = Elements(*cache_, KvOffset(layer, value, i % heads, position));
      uint8_t* const to = fresh.data() + i * row_bytes;
      FromBfloat16(kernels, row, dim, step.cache_type, to);
      // If the type cannot represent the row (float16, small values), the host's row differs, and
      // the next token sends it.
      ToBfloat16(kernels, step.cache_type, to, dim, again.data());
      const bool same = std::memcmp(again.data(), row, static_cast<size_t>(2 * dim)) == 0;
      MarkOfRow(layer, value, i % heads, position) = same ? MarkOf(to, row_bytes) : RowMark{};
    }
    const uint8_t *const keys = fresh.data(), *const values = keys + heads * row_bytes;
    if (step.windowed_cache) {
      host::ShiftWindow(step, threads, {0, 1}, keys, values);
      continue;
    }
    host::CarryPast(step, threads);
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t at = BytesOf(step.cache_type, (head * step.present_capacity + position) * dim);
      std::memcpy(static_cast<uint8_t*>(step.present_key) + at, keys + head * row_bytes,
                  static_cast<size_t>(row_bytes));
      std::memcpy(static_cast<uint8_t*>(step.present_value) + at, values + head * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  }
}

}  // namespace ort_aie::npu_target
