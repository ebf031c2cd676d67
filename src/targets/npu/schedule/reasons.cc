#include "targets/npu/schedule/reasons.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"
#include "q4nx/layout.h"

namespace ort_aie::npu_target {

std::string Words(Reason reason) {
  static const std::map<Reason, std::string> words = {
      {Reason::kInt8, "int8 numerics"},
      {Reason::kEightBits, "no kernel for weights of 8 bits"},
      {Reason::kFileForm, "no kernel for weights as in a GGUF file"},
      {Reason::kTokenInFeatures, Concat("a token's projection from more than ", kMatvecMaxK,
                                        " to more than ", kMatvecMaxBias, " features")},
      {Reason::kInFeatures, Concat("a projection from more than ", kGemmMaxK, " in-features")},
      {Reason::kOneRow, "a single row of an unquantised projection"},
      {Reason::kOtherKeys, "keys of another sequence than the queries"},
      {Reason::kHiddenKeys, "an attention mask that hides more than the first keys"},
      {Reason::kAttentionBias, "attention_bias"},
      {Reason::kHeadSink, "head_sink"},
      {Reason::kSmoothSoftmax, "smooth_softmax"},
      {Reason::kWideHeads, Concat("heads of more than ", kMaxHeadDim, " dimensions")},
      {Reason::kMoreThanCache, "more tokens than the cache holds"},
      {Reason::kEmbedding, "rows of an embedding"},
      {Reason::kSeveralRows, "a vector operator on several rows"},
      {Reason::kWideRow, Concat("a vector operator on more than ", kVectorMaxK, " elements")},
      {Reason::kFunction, "an activation that the overlay does not have"},
      {Reason::kGatedNorm, "a norm with a gate"},
      {Reason::kRecurrence, "a recurrence, or a projection to its gates"},
      {Reason::kMove, "elements that only move"},
      {Reason::kHostHasRow, "a vector operator on what the host has"},
      {Reason::kHostPrepares, "queries, keys and values that the host prepares"},
      {Reason::kOtherHeads, "heads of other sizes than 64, 128 and 256, which the host prepares"},
      {Reason::kFewKeys,
       Concat("fewer than ", kGemmLeastRows, " new keys, which the host prepares")},
      {Reason::kUnalignedKeys, "new keys after a number of others that is not a multiple of 8"},
      {Reason::kHostChooses, "experts that the host chooses"},
      {Reason::kHostHasInput, "an input that goes to the device from the host"},
      {Reason::kOtherOverlay, "a step of another overlay"},
      {Reason::kNoRoom, "no room for the rows of more steps"},
      {Reason::kNoVectors, Concat("no overlay ", kDecode)},
      {Reason::kNoTokenProjection, Concat("no overlay ", kDecode, " or ", kFusedDqp)},
      {Reason::kNoTokenAttention, Concat("no overlay ", kDecode, " or ", kFlowKv)},
      {Reason::kNoDequant, Concat("no overlay ", kDequant)},
      {Reason::kNoGemm, Concat("no overlay ", kGemm)},
      {Reason::kNoPromptAttention, Concat("no overlay ", kFlowQkv)},
      {Reason::kRefused, "the sequence of the overlay refuses the shape"},
      {Reason::kGivenUp, "the device was given up"},
  };
  const auto found = words.find(reason);
  return found == words.end() ? "" : found->second;
}

std::string WithoutDecode(const HasOverlay& has) {
  if (has(kDecode)) return "";
  const Design projections = ProjectionDesign(has);
  const Design attention = AttentionDesign(has);
  const auto where = [](Design design) {
    return design.empty() ? std::string("on this CPU") : Concat("on the overlay ", design);
  };
  return Concat(
      "there is no overlay ", kDecode, ", which runs a token in one submission: its ",
      "projections run ", where(projections), ", its attention ", where(attention),
      ", and the operators between them on this CPU, so a layer takes several submissions; ",
      "build it with: ort-aie kernels build ", kDecode, " --device npu2 --out DIR");
}

std::string Words(LayerReason reason) {
  static const std::map<LayerReason, std::string> words = {
      {LayerReason::kNoPlan, "attention that is a node by itself, without a plan"},
      {LayerReason::kSeveralSequences, "several sequences at a time"},
      {LayerReason::kNotStandard, "other steps than those of standard layers and a vocabulary"},
      {LayerReason::kBias, "a bias of another projection than that of queries, keys and values"},
      {LayerReason::kQuantisedCache, "a cache of integers"},
      {LayerReason::kHeadNorms,
       "norms of heads other than of queries and keys before they are rotated"},
      {LayerReason::kPositions, "positions of several axes"},
      {LayerReason::kEpsilons, "norms with different epsilons"},
      {LayerReason::kInnerValue, "a value inside a layer that is wanted outside"},
      {LayerReason::kFault, "an earlier fault of whole layers"},
  };
  const auto found = words.find(reason);
  return found == words.end() ? "" : found->second;
}

namespace {

// Whether weights can be stored in a form of Q4NX.
bool Holds(const WeightForm& form, const WeightForm& weights) {
  const bool implied = weights.kind == WeightKind::kQ4NX && !weights.minima;
  return weights.group % form.group == 0 && (form.minima || implied);
}

bool HasForm(const WeightForm& form, const HasOverlay& has) {
  return std::ranges::all_of(
      kReaders, [&](Design design) { return !has(design) || has(PackageOf(design, form)); });
}

}  // namespace

bool CanBeQ4nx(const WeightForm& form) {
  return form.kind == WeightKind::kQ4NX || form.kind == WeightKind::kQ2NX;
}

WeightForm FormOfPlan(std::span<const WeightForm> weights, const HasOverlay& has) {
  WeightForm smallest = q4nx::kShipping;
  if (weights.empty()) return smallest;
  for (int64_t group = q4nx::kGroup; group <= q4nx::kBlockCols; group *= 2) {
    for (const bool minima : {true, false}) {
      const WeightForm form{WeightKind::kQ4NX, group, minima};
      const bool smaller = q4nx::BlockBytes(form) < q4nx::BlockBytes(smallest);
      const auto holds = [&](const WeightForm& one) { return Holds(form, one); };
      if (smaller && std::ranges::all_of(weights, holds) && HasForm(form, has)) smallest = form;
    }
  }
  return smallest;
}

std::string WhyWidened(const WeightForm& from, const WeightForm& to, bool planned,
                       const HasOverlay& has) {
  if (!CanBeQ4nx(from) || from == to) return "";
  if (from.kind == WeightKind::kQ2NX) return "no overlay for weights of 2 bits";
  if (!HasForm(from, has)) {
    return Concat("no overlays for groups of ", from.group, from.minima ? "" : ", symmetric");
  }
  return planned ? "other weights of the plan have another form" : "not a projection of a plan";
}

namespace {

struct ProjectionFacts {
  WeightKind kind;
  int64_t rows, n, k;
  Numerics numerics;
};

Reason WhyNotProduct(const ProjectionFacts& projection, const HasOverlay& has) {
  const bool token = projection.rows == 1, quantised = projection.kind != WeightKind::kBf16;
  if (projection.numerics == Numerics::kInt8) return Reason::kInt8;
  if (projection.kind == WeightKind::kQ8NX) return Reason::kEightBits;
  if (projection.kind == WeightKind::kFile) return Reason::kFileForm;
  // The array takes at least the time of 64 rows; the host takes the time to read the weights.
  if (token && !quantised) return Reason::kOneRow;
  if (q4nx::PaddedCols(projection.k) > kGemmMaxK) return Reason::kInFeatures;
  if (token) {
    // Parts are added in the way of a bias.
    const bool parts = q4nx::PaddedCols(projection.k) > kMatvecMaxK;
    if (parts && projection.n > kMatvecMaxBias) return Reason::kTokenInFeatures;
    return ProjectionDesign(has).empty() ? Reason::kNoTokenProjection : Reason::kNone;
  }
  if (quantised && !has(kDequant)) return Reason::kNoDequant;
  return has(kGemm) ? Reason::kNone : Reason::kNoGemm;
}

// Left padding is left out by beginning after it. This is whether other keys are hidden.
bool HidesMore(const AttentionStep& step) {
  if (step.key_mask != nullptr) return true;
  for (size_t b = 0; b < step.visible_keys.size(); ++b) {
    const Range keys = step.visible_keys[b];
    if (keys.end != step.total_length[b] || keys.first >= keys.end) return true;
  }
  return false;
}

Reason WhyNotVector(int64_t rows, int64_t k, bool rows_taken, const HasOverlay& has) {
  if (k > kVectorMaxK) return Reason::kWideRow;
  if (rows == 1) return has(kDecode) ? Reason::kNone : Reason::kNoVectors;
  // GEMM's overlay has norms and sums of whole blocks' columns if the kernels exist, which are for
  // AIE2P, as are those of `decode`.
  const bool whole = k % q4nx::kBlockCols == 0 && k <= kRowOperatorsMaxK;
  return rows_taken && whole && has(kDecode) && has(kGemm) ? Reason::kNone : Reason::kSeveralRows;
}

}  // namespace

Reason WhyNotProjection(const MatMulStep& step, const HasOverlay& has) {
  return WhyNotProduct({step.form.kind, step.rows, step.n, step.k, step.numerics}, has);
}

Reason WhyNotAttention(const AttentionStep& step, const HasOverlay& has) {
  const auto beyond = [&](int64_t total) {
    return !step.windowed_cache && total > step.present_capacity;
  };
  if (step.key_sequence != step.sequence) return Reason::kOtherKeys;
  if (HidesMore(step)) return Reason::kHiddenKeys;
  if (step.bias != nullptr) return Reason::kAttentionBias;
  if (step.head_sink != nullptr) return Reason::kHeadSink;
  if (step.smooth_softmax) return Reason::kSmoothSoftmax;
  if (step.dim > kMaxHeadDim) return Reason::kWideHeads;
  if (std::ranges::any_of(step.total_length, beyond)) return Reason::kMoreThanCache;
  if (step.sequence == 1) {
    return AttentionDesign(has).empty() ? Reason::kNoTokenAttention : Reason::kNone;
  }
  return has(kFlowQkv) ? Reason::kNone : Reason::kNoPromptAttention;
}

Reason WhyNotExperts(const MoEStep& step, const HasOverlay& has) {
  const auto of_rows = [&](int64_t rows) {
    const Reason in =
        WhyNotProduct({step.form.kind, rows, step.inter, step.hidden, step.numerics}, has);
    if (in != Reason::kNone) return in;
    return WhyNotProduct({step.down_form.kind, rows, step.hidden, step.inter, step.numerics}, has);
  };
  const Reason reason = of_rows(step.rows);
  // Of several rows, an expert may have one.
  return reason == Reason::kNone && step.rows > 1 ? of_rows(1) : reason;
}

Reason WhyNotNorm(const NormStep& step, const HasOverlay& has) {
  return step.gate != nullptr ? Reason::kGatedNorm : WhyNotVector(step.rows, step.k, true, has);
}

Reason WhyNotElementwise(const ElementwiseStep& step, const HasOverlay& has) {
  constexpr std::array kNoKernel = {Function::kSwiglu, Function::kSigmoid, Function::kGelu,
                                    Function::kUnit};
  if (std::ranges::find(kNoKernel, step.function) != kNoKernel.end()) return Reason::kFunction;
  return WhyNotVector(step.rows, step.k, step.function == Function::kAdd, has);
}

}  // namespace ort_aie::npu_target
