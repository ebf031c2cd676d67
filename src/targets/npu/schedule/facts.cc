#include "targets/npu/schedule/facts.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "targets/npu/schedule/reasons.h"

namespace ort_aie::npu_target {

bool HasSequences(const DeviceFacts& facts, std::string_view package,
                  std::initializer_list<std::string_view> names) {
  const npu::Manifest* const manifest = facts.overlay(package);
  return manifest != nullptr && std::ranges::all_of(names, [&](std::string_view name) {
           return std::ranges::find(manifest->sequences, name, &npu::Sequence::name) !=
                  manifest->sequences.end();
         });
}

WeightForm FormOfPlan(const DeviceFacts& facts, const Plan& plan) {
  std::vector<WeightForm> forms;
  for (const Step& step : plan.steps) {
    const auto* projection = std::get_if<MatMulStep>(&step);
    if (projection != nullptr && CanBeQ4nx(projection->form)) forms.push_back(projection->form);
    // Experts are plans of their own, between two runs of this one: on the same overlay.
    if (std::holds_alternative<MoEStep>(step)) forms.push_back(q4nx::kShipping);
  }
  // A short prompt's projections are for where the change to their overlay is cheap.
  const bool cheap = facts.share_context(kShortGemm, kGemm);
  return FormOfPlan(forms, [&](std::string_view package) {
    const bool of_short = package.starts_with(kShortGemm);
    return of_short ? cheap && facts.share_context(package, kGemm) : facts.has(package);
  });
}

PromptOverlays PromptOverlaysOf(const DeviceFacts& facts, const Plan& plan,
                                const WeightForm& form) {
  if (!facts.has(kGemmBfp16) || !facts.has(PackageOf(kDequantBfp16, form))) return {};
  for (const Step& step : plan.steps) {
    const auto* projection = std::get_if<MatMulStep>(&step);
    if (projection == nullptr || projection->rows == 1) continue;
    if (projection->form.kind == WeightKind::kBf16) return {};
  }
  return {kGemmBfp16, kDequantBfp16};
}

}  // namespace ort_aie::npu_target
