#include "targets/npu/schedule/steps.h"

#include <algorithm>
#include <array>
#include <variant>

#include "targets/npu/schedule/attention.h"
#include "targets/npu/schedule/projection.h"
#include "targets/npu/schedule/vectors.h"

namespace ort_aie::npu_target {
namespace {

constexpr auto kNoDesign = [](const DeviceFacts&, const Plan&, const Step&) -> Design {
  return {};
};

template <typename Kind, Reason (*WhyNot)(const Kind&, const HasOverlay&)>
Reason WhyNotOf(const Step& step, const HasOverlay& has) {
  return WhyNot(std::get<Kind>(step), has);
}

// --- projections ---

constexpr StepHandler kProjection = {
    .why_not = WhyNotOf<MatMulStep, WhyNotProjection>,
    .design = [](const DeviceFacts& facts, const Plan& plan, const Step& any) -> Design {
      const auto& step = std::get<MatMulStep>(any);
      if (step.rows == 1) return ProjectionDesign(facts.has);
      return IsLarge(facts, plan.temporaries, step) ? Design() : facts.prompts.gemm;
    },
    .append =
        [](Scheduling& scheduling, Batch& batch, Design design, std::span<const Step> steps) {
          const auto& step = std::get<MatMulStep>(steps.front());
          return step.rows > 1 ? AppendPromptProjection(scheduling, batch, steps)
                               : AppendProjection(scheduling, batch, design, step);
        },
    .alone = [](Scheduling& scheduling, const Step& step,
                Stage& stage) { ProjectLarge(scheduling, std::get<MatMulStep>(step), stage); }};

// Experts, whose projections are a plan of their own.
constexpr StepHandler kExperts = {.why_not = WhyNotOf<MoEStep, WhyNotExperts>, .design = kNoDesign};

// --- attention ---

constexpr StepHandler kAttention = {
    .why_not = WhyNotOf<AttentionStep, WhyNotAttention>,
    .design = [](const DeviceFacts& facts, const Plan&, const Step& step) -> Design {
      return std::get<AttentionStep>(step).sequence == 1 ? AttentionDesign(facts.has) : Design();
    },
    .append =
        [](Scheduling& scheduling, Batch& batch, Design design, std::span<const Step> steps) {
          const auto& step = std::get<AttentionStep>(steps.front());
          return step.sequence > 1 ? AppendPromptAttention(scheduling, batch, step)
                                   : AppendAttention(scheduling, batch, design, step);
        },
    .joins = [](const DeviceFacts& facts, const Step& step) -> Design {
      return std::get<AttentionStep>(step).sequence > 1 ? facts.prompts.gemm : Design();
    },
    .alone = [](Scheduling& scheduling, const Step& step,
                Stage& stage) { AttendPrompt(scheduling, std::get<AttentionStep>(step), stage); }};

// --- between projections ---

constexpr StepHandler kNorm = {
    .why_not = WhyNotOf<NormStep, WhyNotNorm>,
    .design = [](const DeviceFacts& facts, const Plan&, const Step& step) -> Design {
      return std::get<NormStep>(step).rows > 1 ? facts.prompts.gemm : kDecode;
    },
    .append =
        [](Scheduling& scheduling, Batch& batch, Design, std::span<const Step> steps) {
          return AppendNorm(scheduling.facts, batch, std::get<NormStep>(steps.front()));
        },
    .between = true};

constexpr StepHandler kElementwise = {
    .why_not = WhyNotOf<ElementwiseStep, WhyNotElementwise>,
    .design = [](const DeviceFacts& facts, const Plan&, const Step& step) -> Design {
      return std::get<ElementwiseStep>(step).rows > 1 ? facts.prompts.gemm : kDecode;
    },
    .append =
        [](Scheduling& scheduling, Batch& batch, Design, std::span<const Step> steps) {
          return AppendElementwise(scheduling.facts, batch,
                                   std::get<ElementwiseStep>(steps.front()));
        },
    .between = true};

constexpr StepHandler kCast = {
    .why_not = [](const Step&, const HasOverlay&) { return Reason::kNone; },
    .design = [](const DeviceFacts&, const Plan&, const Step&) -> Design { return kDecode; },
    .append =
        [](Scheduling&, Batch& batch, Design, std::span<const Step> steps) {
          return AppendCast(batch, std::get<CastStep>(steps.front()));
        },
    .between = true};

// Rows of an embedding; of a tensor on the device, see AppendIfSelection.
constexpr StepHandler kGather = {
    .why_not = [](const Step&, const HasOverlay&) { return Reason::kEmbedding; },
    .design = kNoDesign};

constexpr StepHandler kRecurrence = {
    .why_not = [](const Step&, const HasOverlay&) { return Reason::kRecurrence; },
    .design = kNoDesign};

constexpr StepHandler kMove = {
    .why_not = [](const Step&, const HasOverlay&) { return Reason::kMove; }, .design = kNoDesign};

}  // namespace

const StepHandler& HandlerOf(const Step& step) {
  static constexpr std::array<const StepHandler*, std::variant_size_v<Step>> kHandlers = {
      &kProjection, &kGather, &kAttention,  &kNorm,       &kElementwise, &kCast,
      &kExperts,    &kMove,   &kRecurrence, &kRecurrence, &kRecurrence,  &kRecurrence};
  static_assert(std::is_same_v<std::variant_alternative_t<0, Step>, MatMulStep> &&
                std::is_same_v<std::variant_alternative_t<1, Step>, GatherStep> &&
                std::is_same_v<std::variant_alternative_t<2, Step>, AttentionStep> &&
                std::is_same_v<std::variant_alternative_t<3, Step>, NormStep> &&
                std::is_same_v<std::variant_alternative_t<4, Step>, ElementwiseStep> &&
                std::is_same_v<std::variant_alternative_t<5, Step>, CastStep> &&
                std::is_same_v<std::variant_alternative_t<6, Step>, MoEStep> &&
                std::is_same_v<std::variant_alternative_t<7, Step>, MoveStep>);
  return *kHandlers[step.index()];
}

bool AppendIfSelection(Batch& batch, const Step& step) {
  const auto* gather = std::get_if<GatherStep>(&step);
  return gather != nullptr && AppendSelection(batch, *gather);
}

}  // namespace ort_aie::npu_target
