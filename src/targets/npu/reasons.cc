#include "targets/npu/reasons.h"

#include "base/error.h"
#include "q4nx/layout.h"

namespace ort_aie::npu_target {

std::string Words(Reason reason) {
  switch (reason) {
    case Reason::kTwoBits:
      return "2-bit weights";
    case Reason::kInt8:
      return "int8 numerics";
    case Reason::kSumWithoutNorm:
      return "a sum without a norm";
    case Reason::kFewOutFeatures:
      return Concat("a projection to fewer than ", kLeastN, " out-features");
    case Reason::kTokenInFeatures:
      return Concat("a token's projection from more than ", kMatvecMaxK, " in-features");
    case Reason::kInFeatures:
      return Concat("a projection from more than ", kGemmMaxK, " in-features");
    case Reason::kLongBias:
      return Concat("a bias of more than ", kMatvecMaxBias);
    case Reason::kOneRow:
      return "a single row of an unquantised projection";
    case Reason::kOtherKeys:
      return "keys of another sequence than the queries";
    case Reason::kHiddenKeys:
      return "an attention mask that hides more than the first keys";
    case Reason::kAttentionBias:
      return "attention_bias";
    case Reason::kHeadSink:
      return "head_sink";
    case Reason::kSmoothSoftmax:
      return "smooth_softmax";
    case Reason::kWideHeads:
      return Concat("heads of more than ", kMaxHeadDim, " dimensions");
    case Reason::kWindowWithoutCausality:
      return "a window without causality";
    case Reason::kMoreThanCache:
      return "more tokens than the cache holds";
    case Reason::kEmbedding:
      return "rows of an embedding";
    case Reason::kNoTokenProjection:
      return Concat("no overlay ", kDecode, " or ", kFusedDqp);
    case Reason::kNoTokenAttention:
      return Concat("no overlay ", kDecode, " or ", kFlowKv);
    case Reason::kNoDequant:
      return Concat("no overlay ", kDequant);
    case Reason::kNoGemm:
      return Concat("no overlay ", kGemm);
    case Reason::kNoPromptAttention:
      return Concat("no overlay ", kFlowQkv);
    case Reason::kRefused:
      return "the sequence of the overlay refuses the shape";
    case Reason::kGivenUp:
      return "the device was given up";
    case Reason::kNone:
    case Reason::kCount:
      break;
  }
  return "";
}

Reason WhyNotProjection(const ProjectionFacts& projection, const HasOverlay& has) {
  const bool token = projection.rows == 1, quantised = projection.form != WeightForm::kBf16;
  if (projection.form == WeightForm::kQ2NX) return Reason::kTwoBits;
  if (projection.numerics == Numerics::kInt8) return Reason::kInt8;
  // The array takes the time of 64 rows at least, the host that of reading the weights.
  if (token && !quantised) return Reason::kOneRow;
  if (projection.has_skip && !projection.has_norm) return Reason::kSumWithoutNorm;
  if (q4nx::PaddedRows(projection.n) < kLeastN) return Reason::kFewOutFeatures;
  if (q4nx::PaddedCols(projection.k) > (token ? kMatvecMaxK : kGemmMaxK)) {
    return token ? Reason::kTokenInFeatures : Reason::kInFeatures;
  }
  if (token) {
    if (projection.has_bias && projection.n > kMatvecMaxBias) return Reason::kLongBias;
    return ProjectionDesign(has) == nullptr ? Reason::kNoTokenProjection : Reason::kNone;
  }
  if (quantised) {
    if (projection.rows == kAnyRows) return Reason::kNone;
    if (!has(kDequant)) return Reason::kNoDequant;
  }
  return has(kGemm) ? Reason::kNone : Reason::kNoGemm;
}

Reason WhyNotAttention(const AttentionFacts& attention, const HasOverlay& has) {
  if (attention.other_keys) return Reason::kOtherKeys;
  if (attention.hidden_keys) return Reason::kHiddenKeys;
  if (attention.has_bias) return Reason::kAttentionBias;
  if (attention.has_head_sink) return Reason::kHeadSink;
  if (attention.smooth_softmax) return Reason::kSmoothSoftmax;
  if (attention.dim > kMaxHeadDim) return Reason::kWideHeads;
  if (!attention.causal && attention.window > 0) return Reason::kWindowWithoutCausality;
  if (attention.more_than_cache) return Reason::kMoreThanCache;
  if (attention.rows == kAnyRows) return Reason::kNone;
  if (attention.rows == 1) {
    return AttentionDesign(has) == nullptr ? Reason::kNoTokenAttention : Reason::kNone;
  }
  return has(kFlowQkv) ? Reason::kNone : Reason::kNoPromptAttention;
}

Reason WhyNotGather() { return Reason::kEmbedding; }

}  // namespace ort_aie::npu_target
