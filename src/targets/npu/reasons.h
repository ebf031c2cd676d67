// Why the NPU leaves a step to the host: facts in, a reason out. Neither a device nor XRT is
// needed: the executor asks for steps, and `_native` for the nodes of a graph, whose rows nobody
// knows yet (ort-aie explain).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ops/plan.h"
#include "targets/npu/designs.h"

namespace ort_aie::npu_target {

enum class Reason {
  kNone,  // the NPU does it
  kInt8,
  kTokenInFeatures,
  kInFeatures,
  kOneRow,
  kOtherKeys,
  kHiddenKeys,
  kAttentionBias,
  kHeadSink,
  kSmoothSoftmax,
  kWideHeads,
  kWindowWithoutCausality,
  kMoreThanCache,
  kEmbedding,
  kSeveralRows,
  kWideRow,
  kFunction,
  kHostHasRow,
  kHostPrepares,
  kHostHasInput,
  kOtherOverlay,
  kNoRoom,
  kNoVectors,
  kNoTokenProjection,
  kNoTokenAttention,
  kNoDequant,
  kNoGemm,
  kNoPromptAttention,
  kRefused,
  kGivenUp,
  kCount
};

// As counters and `explain` have it, and docs/ryzen-ai.md; empty for kNone.
std::string Words(Reason reason);

// What a token does without the overlay that has all of it, where others are there: in a line for
// people. Empty where `has` has it.
std::string WithoutDecode(const HasOverlay& has);

// In place of a number of rows: asks for what holds whatever that will be.
inline constexpr int64_t kAnyRows = -1;

struct ProjectionFacts {
  WeightForm form = WeightForm::kQ4NX;
  int64_t rows = kAnyRows, n = 0, k = 0;
  Numerics numerics = Numerics::kBf16;
};
Reason WhyNotProjection(const ProjectionFacts& projection, const HasOverlay& has);

struct AttentionFacts {
  int64_t rows = kAnyRows;  // of queries
  int64_t dim = 0;
  // hidden_keys: others than those before the first one that is visible.
  bool other_keys = false, hidden_keys = false, has_bias = false, has_head_sink = false,
       smooth_softmax = false, causal = true;
  int64_t window = -1;
  bool more_than_cache = false;
};
Reason WhyNotAttention(const AttentionFacts& attention, const HasOverlay& has);

// Rows of an embedding.
Reason WhyNotGather();

// Norms, sums, products, activations and casts that stand alone. What the host has the input of is
// the host's besides, which plans alone tell.
struct VectorFacts {
  int64_t rows = kAnyRows, k = 0;
  std::optional<Function> function = std::nullopt;  // of an ElementwiseStep
};
Reason WhyNotVector(const VectorFacts& vector, const HasOverlay& has);

}  // namespace ort_aie::npu_target
