#include "targets/npu/attention_rows.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "targets/host/attention_inputs.h"
#include "targets/host/work.h"
#include "targets/npu/conversions.h"
#include "targets/trace.h"

namespace ort_aie::npu_target {

void StoreQueries(const AttentionStep& step, int64_t token, uint16_t* y) {
  const host::Kernels& kernels = host::SelectedKernels();
  const int64_t padded = PaddedHeadDim(step.dim);
  float* x = host::Scratch<float>(host::Purpose::kTile, step.dim);
  for (int64_t head = 0; head < step.heads; ++head) {
    host::LoadQuery(step, kernels, token, head, x);
    kernels.float_to_bfloat16(x, step.dim, y + head * padded);
    std::fill(y + head * padded + step.dim, y + (head + 1) * padded, uint16_t{0});
  }
}

void StoreOutput(const AttentionStep& step, const uint16_t* o, int64_t token) {
  const host::Kernels& kernels = host::SelectedKernels();
  const int64_t padded = PaddedHeadDim(step.dim);
  for (int64_t head = 0; head < step.heads; ++head) {
    void* y = Advance(step.output, step.type, (token * step.heads + head) * step.dim);
    if (!step.value_scales) {
      FromBfloat16(kernels, o + head * padded, step.dim, step.type, y);
      continue;
    }
    float* x = host::Scratch<float>(host::Purpose::kTile, step.dim);
    kernels.bfloat16_to_float(o + head * padded, step.dim, x);
    host::Scale(kernels, step.value_scales, head * step.kv_heads / step.heads, step.dim, x);
    host::FromFloat(kernels, step.type, x, step.dim, y);
  }
}

FreshRows::FreshRows(const AttentionStep& step, const Range& new_tokens) : tokens(new_tokens) {
  const int64_t elements = step.batch * step.kv_heads * (tokens.end - tokens.first) * step.dim;
  bytes = elements <= 0 ? 0 : static_cast<size_t>(BytesOf(step.cache_type, elements));
  memory.resize(2 * bytes);
}

HostRows FreshRows::Of(const AttentionStep& step) {
  HostRows rows{keys(), values(), tokens.end - tokens.first, {}};
  for (size_t b = 0; b < step.past_length.size(); ++b) {
    rows.first.push_back(step.past_length[b] + tokens.first);
  }
  return rows;
}

HostRows InPresent(const AttentionStep& step) {
  return {step.present_key, step.present_value, step.present_capacity,
          std::vector<int64_t>(step.past_length.size(), 0)};
}

NewRows::NewRows(const AttentionStep& step)
    : step_(step),
      fresh_(step.windowed_cache ? std::make_shared<FreshRows>(step, Range{0, step.sequence})
                                 : nullptr),
      rows_(fresh_ != nullptr ? fresh_->Of(step) : InPresent(step)) {}

void NewRows::WriteHosts(const ThreadPool& threads, bool made) const {
  const host::Kernels& kernels = host::SelectedKernels();
  const TraceSpan traced("host", "write present");
  if (made && separate()) {
    host::WriteNewRows(step_, kernels, threads, fresh_->tokens, fresh_->keys(), fresh_->values());
  } else if (made) {
    host::WritePresent(step_, kernels, threads);
  } else if (!separate()) {
    host::CarryPast(step_, threads);
  }
}

void NewRows::Store(KvCopy& copy, const ThreadPool& threads, const Rows& of) const {
  const host::Kernels& kernels = host::SelectedKernels();
  std::atomic<bool> same = true;
  const int64_t heads = step_.batch * step_.kv_heads;
  threads.ParallelFor(2 * heads, host::PassNs(step_.sequence * step_.dim), [&](int64_t i) {
    const int64_t head = i % heads;
    const bool value = i >= heads;
    const auto b = static_cast<size_t>(head / step_.kv_heads);
    const int64_t first = head * rows_.capacity + step_.past_length[b] - rows_.first[b];
    auto* again = host::Scratch<uint16_t>(host::Purpose::kKeys, step_.dim);
    void* all = const_cast<void*>(value ? rows_.values : rows_.keys);
    for (int64_t token = 0; token < step_.sequence; ++token) {
      const uint16_t* x = of(head, token, value);
      void* to = Advance(all, step_.cache_type, (first + token) * step_.dim);
      FromBfloat16(kernels, x, step_.dim, step_.cache_type, to);
      ToBfloat16(kernels, step_.cache_type, to, step_.dim, again);
      if (std::memcmp(again, x, static_cast<size_t>(2 * step_.dim)) != 0) same = false;
    }
  });
  if (same) copy.Appended(step_, rows_, threads);
}

void NewRows::Shift(const ThreadPool& threads) const {
  if (separate()) {
    host::ShiftWindow(step_, threads, fresh_->tokens, fresh_->keys(), fresh_->values());
  }
}

}  // namespace ort_aie::npu_target
