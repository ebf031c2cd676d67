// Which experts the rows of a MoEStep use, and the projections that follow from it. Pure functions,
// for every target.
#pragma once

#include <cstdint>
#include <span>

#include "ops/plan.h"

namespace ort_aie {

// Far more than any model has. A routing counts its pairs of rows and experts in 32 bits.
inline constexpr int64_t kMostExperts = int64_t{1} << 16;

// The chosen (row, expert) pairs of a number of rows, in the order of experts, and of rows within
// an expert. The memory is the caller's.
struct Routing {
  std::span<int32_t> first;  // (experts + 1): pairs [first[e], first[e + 1]) are those of expert e
  std::span<int32_t> used;   // the experts that have pairs, ascending
  std::span<int32_t> row;    // (rows * top_k), by pair
  std::span<float> weight;   // (rows * top_k), by pair

  int64_t RowsOf(int64_t expert) const {
    const auto e = static_cast<size_t>(expert);
    return first[e + 1] - first[e];
  }
};

// How many 4-byte words of memory the Routing of `rows` rows needs.
constexpr int64_t RoutingWords(const MoEStep& step, int64_t rows) {
  return (step.sigmoid ? 3 : 2) * step.experts + 1 + 3 * rows * step.top_k + step.top_k;
}
// `memory` has RoutingWords words. logits (rows, experts) and weights (rows, experts, or null) are
// the step's as float32. Each row chooses the experts with the top_k largest logits, of equal ones
// the last. Without `weights`, the weights of a row's experts are the softmax of the chosen logits;
// else they are those of `weights`, with `normalize` divided by their sum. A row whose sum is 0 or
// not a number gets zeros, as in ONNX Runtime's QMoE. Scores that are sigmoids are chosen as ONNX's
// TopK does: of equal ones the first.
Routing RouteRows(const MoEStep& step, int64_t rows, const float* logits, const float* weights,
                  void* memory);

// The projections of one expert, in float32, for rows that stand one after the other: x (rows,
// hidden) becomes y (rows, hidden) by way of h (rows, inter). `in` is gate and up, which must have
// one form to be one projection.
struct ExpertSteps {
  MatMulStep in, out;
};
ExpertSteps StepsOfExpert(const MoEStep& step, int64_t expert, int64_t rows, const float* x,
                          float* h, float* y);

}  // namespace ort_aie
