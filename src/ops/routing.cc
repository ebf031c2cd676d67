#include "ops/routing.h"

#include <algorithm>
#include <cmath>

namespace ort_aie {
namespace {

// The chosen.size() largest logits, the largest first; of equal ones the last first, or the first.
// NaN is above all numbers: a row that has one has a softmax that is not a number, wherever it is.
void Choose(std::span<const float> logits, bool first_of_equals, std::span<int32_t> chosen) {
  const auto smaller = [&](size_t expert, int32_t other) {
    const float x = logits[expert], y = logits[static_cast<size_t>(other)];
    return x < y || (first_of_equals && x == y) || (std::isnan(y) && !std::isnan(x));
  };
  size_t count = 0;
  for (size_t e = 0; e < logits.size(); ++e) {
    if (count == chosen.size() && smaller(e, chosen.back())) continue;
    size_t place = count < chosen.size() ? count++ : count - 1;
    for (; place > 0 && !smaller(e, chosen[place - 1]); --place) chosen[place] = chosen[place - 1];
    chosen[place] = static_cast<int32_t>(e);
  }
}

void Divide(std::span<float> weights, float sum) {
  const bool usable = std::isfinite(sum) && sum != 0;
  for (float& weight : weights) weight = usable ? weight / sum : 0.0f;
}

float Sum(std::span<const float> weights) {
  float sum = 0;
  for (const float weight : weights) sum += weight;
  return sum;
}

// The largest comes first.
void Softmax(std::span<float> logits) {
  const float most = logits.front();
  for (float& logit : logits) logit = std::exp(logit - most);
  Divide(logits, Sum(logits));
}

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

const uint8_t* ExpertOf(const uint8_t* weights, int64_t expert, int64_t n, int64_t k,
                        const WeightForm& form) {
  return weights == nullptr ? nullptr : weights + expert * q4nx::BytesOfBlocks(n, k, form);
}

const float* ExpertOf(const float* bias, int64_t expert, int64_t n) {
  return bias == nullptr ? nullptr : bias + expert * n;
}

}  // namespace

Routing RouteRows(const MoEStep& step, int64_t rows, const float* logits, const float* weights,
                  void* memory) {
  const auto experts = static_cast<size_t>(step.experts), k = static_cast<size_t>(step.top_k);
  const size_t pairs = static_cast<size_t>(rows) * k;
  auto* words = static_cast<int32_t*>(memory);
  const auto take = [&](size_t count) {
    const std::span<int32_t> taken(words, count);
    words += count;
    return taken;
  };
  Routing routing;
  routing.first = take(experts + 1);
  routing.used = take(experts);
  routing.row = take(pairs);
  routing.weight = {reinterpret_cast<float*>(take(pairs).data()), pairs};
  const std::span<int32_t> chosen = take(pairs);  // by row
  const std::span<float> shares{reinterpret_cast<float*>(take(k).data()), k};
  const size_t scored = step.sigmoid ? experts : 0;
  const std::span<float> scores{reinterpret_cast<float*>(take(scored).data()), scored};  // of a row

  const auto of_row = [&](auto span, int64_t row, size_t count) {
    return span.subspan(static_cast<size_t>(row) * count, count);
  };
  const std::span<const float> all(logits, static_cast<size_t>(rows) * experts);
  std::ranges::fill(routing.first, 0);
  for (int64_t r = 0; r < rows; ++r) {
    const std::span<const float> its = of_row(all, r, experts);
    for (size_t e = 0; e < scored; ++e) {
      scores[e] = Sigmoid(its[e]) + (step.choice_bias != nullptr ? step.choice_bias[e] : 0.0f);
    }
    Choose(step.sigmoid ? scores : its, step.sigmoid, of_row(chosen, r, k));
    for (const int32_t expert : of_row(chosen, r, k)) {
      ++routing.first[static_cast<size_t>(expert) + 1];
    }
  }
  size_t used = 0;
  for (size_t e = 0; e < experts; ++e) {
    if (routing.first[e + 1] > 0) routing.used[used++] = static_cast<int32_t>(e);
    routing.first[e + 1] += routing.first[e];
  }
  routing.used = routing.used.first(used);

  for (int64_t r = 0; r < rows; ++r) {
    const std::span<const int32_t> its = of_row(chosen, r, k);
    const float* from = (weights != nullptr ? weights : logits) + r * step.experts;
    for (size_t i = 0; i < k; ++i) shares[i] = from[its[i]];
    if (step.sigmoid) {
      std::ranges::transform(shares, shares.begin(), Sigmoid);
      const float sum = Sum(shares) + step.epsilon;
      for (float& share : shares) share = share / sum * step.factor;
    } else if (weights == nullptr) {
      Softmax(shares);
    } else if (step.normalize) {
      Divide(shares, Sum(shares));
    }
    for (size_t i = 0; i < k; ++i) {
      // first[e] moves through the pairs of e, and is put back below.
      const auto pair = static_cast<size_t>(routing.first[static_cast<size_t>(its[i])]++);
      routing.row[pair] = static_cast<int32_t>(r);
      routing.weight[pair] = shares[i];
    }
  }
  for (size_t e = experts; e > 0; --e) routing.first[e] = routing.first[e - 1];
  routing.first[0] = 0;
  return routing;
}

ExpertSteps StepsOfExpert(const MoEStep& step, int64_t expert, int64_t rows, const float* x,
                          float* h, float* y) {
  MatMulStep both{};
  both.rows = rows;
  both.type = DataType::kFloat32;
  both.numerics = step.numerics;
  both.symmetric = step.symmetric;
  both.prompt_chunk = step.prompt_chunk;

  MatMulStep in = both;
  in.weights = ExpertOf(step.gate, expert, step.inter, step.hidden, step.form);
  in.up_weights = ExpertOf(step.up, expert, step.inter, step.hidden, step.up_form);
  in.form = step.form;
  in.k = step.hidden;
  in.n = step.inter;
  in.a = x;
  in.bias = ExpertOf(step.gate_bias, expert, step.inter);
  in.up_bias = ExpertOf(step.up_bias, expert, step.inter);
  in.y = h;
  in.activation = step.activation;
  in.swiglu = step.swiglu;

  MatMulStep out = both;
  out.weights = ExpertOf(step.down, expert, step.hidden, step.inter, step.down_form);
  out.form = step.down_form;
  out.k = step.inter;
  out.n = step.hidden;
  out.a = h;
  out.bias = ExpertOf(step.down_bias, expert, step.hidden);
  out.y = y;
  return {in, out};
}

}  // namespace ort_aie
