// Why the NPU leaves a step to the host: facts in, a reason out. This needs neither a device nor
// XRT. The executor uses it for steps, and `_npu` for the nodes of a graph, whose number of rows
// is not known yet (ort-aie explain).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/plan.h"
#include "targets/npu/schedule/designs.h"

namespace ort_aie::npu_target {

enum class Reason {
  kNone,  // the NPU does it
  kInt8,
  kEightBits,
  kFileForm,
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
  kGatedNorm,
  kRecurrence,
  kMove,
  kHostHasRow,
  kHostPrepares,
  kOtherHeads,
  kFewKeys,
  kUnalignedKeys,
  kHostChooses,
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

// As in counters and `explain`; docs/ryzen-ai.md has what to do about some. Empty for kNone.
std::string Words(Reason reason);

// A line for people: how a token runs without the overlay for all of it, if there are others. Empty
// if `has` has that overlay.
std::string WithoutDecode(const HasOverlay& has);

// Why a token's layers do not run on the overlay `fused_layer`, but step by step: what a plan has
// that the overlay does not do. Sizes have limits too, which its sequences state.
enum class LayerReason {
  kNone,
  kNoPlan,
  kSeveralSequences,
  kNotStandard,
  kBias,
  kQuantisedCache,
  kHeadNorms,
  kPositions,
  kEpsilons,
  kInnerValue,
  kFault,
  kCount
};
std::string Words(LayerReason reason);

struct LayerFacts {
  bool plan = true;  // it is part of one
  bool one_sequence = true;
  bool standard = true;  // its plan has only such layers, and a vocabulary after them
  // One projection gives queries, keys and values. Beside its own there are no biases.
  bool other_bias = false;
  bool quantised_cache = false;
  bool q_norm = false, k_norm = false, v_norm = false, norm_after_rotary = false;
  bool mixed_positions = false;
  bool one_epsilon = true;   // of all norms
  bool inner_value = false;  // something outside reads a value inside it
};
LayerReason WhyNotLayer(const LayerFacts& layer);

// Whether overlays read weights of a form in some form of Q4NX: those of 4 and of 2 bits.
bool CanBeQ4nx(const WeightForm& form);
// The form in which the device reads such weights of a plan: the smallest that holds them all, of
// those for which it has each design that reads weights. It is one, because a token has one
// overlay. Weights in others are widened to it, which changes no bit of a result.
WeightForm FormOfPlan(std::span<const WeightForm> weights, const HasOverlay& has);
// Why weights of form `from` are widened to `to`; empty if they are not. `planned`: they are of a
// plan's projections. All others are in the shipping form on the device.
std::string WhyWidened(const WeightForm& from, const WeightForm& to, bool planned,
                       const HasOverlay& has);

// Instead of a number of rows: gives the reason that holds for any number of them.
inline constexpr int64_t kAnyRows = -1;

struct ProjectionFacts {
  WeightKind kind = WeightKind::kQ4NX;
  int64_t rows = kAnyRows, n = 0, k = 0;
  Numerics numerics = Numerics::kBf16;
};
Reason WhyNotProjection(const ProjectionFacts& projection, const HasOverlay& has);

struct AttentionFacts {
  int64_t rows = kAnyRows;  // of queries
  int64_t dim = 0;
  // hidden_keys: keys other than those before the first visible one are hidden.
  bool other_keys = false, hidden_keys = false, has_bias = false, has_head_sink = false,
       smooth_softmax = false, causal = true;
  int64_t window = -1;
  bool more_than_cache = false;
};
Reason WhyNotAttention(const AttentionFacts& attention, const HasOverlay& has);

// Rows of an embedding.
Reason WhyNotGather();

// A layer of experts, which the NPU does as their projections.
struct ExpertsFacts {
  WeightKind kind = WeightKind::kQ4NX, down_kind = WeightKind::kQ4NX;
  int64_t rows = kAnyRows, hidden = 0, inter = 0;
  Numerics numerics = Numerics::kBf16;
};
Reason WhyNotExperts(const ExpertsFacts& experts, const HasOverlay& has);

// Norms, sums, products, activations and casts by themselves. The host also does those whose input
// it has, which only plans can tell.
struct VectorFacts {
  int64_t rows = kAnyRows, k = 0;
  std::optional<Function> function = std::nullopt;  // of an ElementwiseStep
  bool gated = false;                               // of a NormStep
};
Reason WhyNotVector(const VectorFacts& vector, const HasOverlay& has);

}  // namespace ort_aie::npu_target
