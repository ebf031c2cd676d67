// Why the NPU leaves a step to the host: facts in, a reason out. This needs neither a device nor
// XRT.
#pragma once

#include <cstdint>
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

Reason WhyNotProjection(const MatMulStep& step, const HasOverlay& has);
Reason WhyNotAttention(const AttentionStep& step, const HasOverlay& has);
// A layer of experts, which the NPU does as their projections.
Reason WhyNotExperts(const MoEStep& step, const HasOverlay& has);
// By themselves: the host also does those whose input it has, which only plans can tell.
Reason WhyNotNorm(const NormStep& step, const HasOverlay& has);
Reason WhyNotElementwise(const ElementwiseStep& step, const HasOverlay& has);

}  // namespace ort_aie::npu_target
