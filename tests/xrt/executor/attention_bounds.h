// Bounds on the difference between the device's and the host's output of attention.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "bench.h"
#include "targets/host/attention_inputs.h"

namespace ort_aie::npu_target {

// The largest relative change of a value by `roundings` to bfloat16, one after the other.
inline double Roundings(int roundings) { return 1 / std::pow(1 - kUnit, roundings) - 1; }

// Rounding the two products that a rotation adds moves the result by this share of their sizes,
// which together are at most the length of the pair, rotated or not.
inline double PairLength(const AttentionStep& step, const float* x, int64_t d) {
  if (step.cos == nullptr || d >= step.rotary_dim) return std::abs(x[d]);
  const int64_t half = step.rotary_dim / 2;
  const int64_t other = step.rotary_interleaved ? d ^ 1 : d < half ? d + half : d - half;
  return std::hypot(x[d], x[other]);
}

// The number of tokens whose rows a windowed cache has dropped after the step.
inline int64_t Dropped(const AttentionStep& step, int64_t b) {
  const int64_t total = step.total_length[static_cast<size_t>(b)];
  if (!step.windowed_cache) return 0;
  return total - WindowedCacheRows(total, step.present_capacity, step.window);
}

// Bounds for every element of the output of a step that the host has executed, whose present has
// all keys that its queries see. `query_error` and `key_error` are the differences between the
// device's and the host's queries and new keys, relative to the length of a pair. `value_error` is
// that of values, relative to each.
//
// A score moves by the errors of q, k and float32's sum. If all scores of a row move by at most D,
// each weight of the softmax moves by a factor between e^-2D and e^2D, and the output by that
// factor of the sum of weight |v|. The device rounds the output, and the host may.
inline std::vector<double> AttentionBounds(const AttentionStep& step, double query_error,
                                           double key_error, double value_error = 0) {
  const int64_t dim = step.dim;
  const auto row = [&](const void* cache, int64_t b, int64_t head, int64_t key) {
    std::vector<float> x(static_cast<size_t>(dim));
    const int64_t first =
        ((b * step.kv_heads + head) * step.present_capacity + key - Dropped(step, b)) * dim;
    host::ToFloat(host::SelectedKernels(), step.cache_type, Advance(cache, step.cache_type, first),
                  dim, x.data());
    return x;
  };
  std::vector<double> bounds(static_cast<size_t>(step.batch * step.sequence * step.heads * dim));
  for (int64_t i = 0; i < step.batch * step.sequence * step.heads; ++i) {
    const int64_t token = i / step.heads, head = i % step.heads, b = token / step.sequence;
    const int64_t past = step.past_length[static_cast<size_t>(b)];
    const int64_t total = step.total_length[static_cast<size_t>(b)];
    const int64_t position = past + token % step.sequence;
    if (position >= total) continue;  // padding: zeros
    const int64_t end = step.causal ? position + 1 : total;
    int64_t begin = step.window > 0 ? std::max<int64_t>(0, position - step.window + 1) : 0;
    if (!step.visible_keys.empty()) {
      begin = std::max(begin, step.visible_keys[static_cast<size_t>(b)].first);
    }
    if (begin >= end) continue;  // no keys: zeros
    std::vector<float> q(static_cast<size_t>(dim));
    host::LoadQuery(step, host::SelectedKernels(), token, head, q.data());
    double moved = 0, largest = -std::numeric_limits<double>::infinity(), sum = 0;
    std::vector<double> scores;
    for (int64_t key = begin; key < end; ++key) {
      const std::vector<float> k =
          row(step.present_key, b, head / (step.heads / step.kv_heads), key);
      double score = 0, error = 0;
      for (size_t d = 0; d < q.size(); ++d) {
        const auto at = static_cast<int64_t>(d);
        const double dq = query_error * PairLength(step, q.data(), at);
        const double dk = key < past ? 0 : key_error * PairLength(step, k.data(), at);
        const double qs = std::abs(q[d]) + dq, ks = std::abs(k[d]) + dk;
        score += double{q[d]} * k[d];
        error += dq * ks + std::abs(q[d]) * dk + static_cast<double>(dim) * 0x1p-24 * qs * ks;
      }
      score *= step.scale;
      if (step.softcap != 0) score = step.softcap * std::tanh(score / step.softcap);
      scores.push_back(score);
      moved = std::max(moved, error * step.scale + 0x1p-20 * step.softcap);
      largest = std::max(largest, score);
    }
    for (double& score : scores) sum += score = std::exp(score - largest);
    std::vector<double> output(q.size()), size(q.size());
    for (int64_t key = begin; key < end; ++key) {
      const std::vector<float> v =
          row(step.present_value, b, head / (step.heads / step.kv_heads), key);
      for (size_t d = 0; d < q.size(); ++d) {
        const double term = scores[static_cast<size_t>(key - begin)] / sum * v[d];
        output[d] += term;
        size[d] += std::abs(term);
      }
    }
    if (step.value_scales) {
      const float* scales = step.value_scales.OfHead(head / (step.heads / step.kv_heads), dim);
      for (size_t d = 0; d < q.size(); ++d) {
        output[d] *= scales[step.value_scales.per_channel ? d : 0];
        size[d] *= scales[step.value_scales.per_channel ? d : 0];
      }
    }
    for (size_t d = 0; d < q.size(); ++d) {
      // The host's exponentials, and its sums of at most 2^8 weights.
      const double error = (std::exp(2 * moved) * (1 + value_error) - 1 + 0x1p-16) * size[d];
      bounds[static_cast<size_t>(i * dim) + d] = error + 2 * kUnit * (std::abs(output[d]) + error);
    }
  }
  return bounds;
}

}  // namespace ort_aie::npu_target
