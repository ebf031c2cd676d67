#include "targets/npu/prompt_weights.h"

#include <utility>
#include <vector>

#include "q4nx/layout.h"
#include "targets/npu/weights.h"

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kAlignment = 4096;

int64_t BytesOf(const MatMulStep& step) {
  return RoundUp(2 * DeviceRows(step.n) * q4nx::PaddedCols(step.k), kAlignment);
}

}  // namespace

void PromptWeights::Forget() {
  offsets_.clear();
  scratch_ = {};
}

std::optional<PromptWeights::Place> PromptWeights::Get(const PlanMemory& memory,
                                                       std::span<const Step> steps) {
  const auto& step = std::get<MatMulStep>(steps.front());
  if (generation_ != engine_.generation() || !offsets_.contains(step.weights)) {
    Forget();
    if (!Dequantise(memory, steps)) return std::nullopt;
  }
  const auto place = [&](const uint8_t* blocks) -> DeviceMemory {
    if (blocks == nullptr) return {};
    return {scratch_.buffers[0], offsets_.at(blocks)};
  };
  return Place{place(step.weights), place(step.up_weights)};
}

// As many of the steps' as there is room for; false if those of the first are too many.
bool PromptWeights::Dequantise(const PlanMemory& memory, std::span<const Step> steps) {
  struct Part {
    const MatMulStep* step;
    const uint8_t* blocks;
  };
  std::vector<Part> parts;
  std::map<const uint8_t*, int64_t> offsets;
  int64_t bytes = 0;
  for (const Step& step : steps) {
    const auto* projection = std::get_if<MatMulStep>(&step);
    if (projection == nullptr || projection->form == WeightForm::kBf16) continue;
    if (projection->rows == 1 || !memory.Has(projection->weights)) continue;
    const bool gated = projection->up_weights != nullptr;
    const int64_t more = BytesOf(*projection) * (gated ? 2 : 1);
    if (bytes + more > engine_.options().weight_bytes) break;
    for (const uint8_t* blocks : {projection->weights, projection->up_weights}) {
      if (blocks == nullptr || !offsets.emplace(blocks, bytes).second) continue;
      parts.push_back({projection, blocks});
      bytes += BytesOf(*projection);
    }
  }
  if (parts.empty() || parts.front().step != std::get_if<MatMulStep>(&steps.front())) return false;

  scratch_ = engine_.TakeScratch(static_cast<size_t>(bytes), false);
  generation_ = engine_.generation();
  npu::Plan plan;
  BufferList buffers;
  for (const auto& [step, blocks] : parts) {
    const int64_t count = q4nx::RowBlocks(DeviceRows(step->n)) * q4nx::ColBlocks(step->k);
    plan.push_back({"dequant",
                    {{"blocks", count}},
                    {{"w", buffers.View(memory.Weights(blocks))},
                     {"b", buffers.View({scratch_.buffers[0]}, offsets.at(blocks))}}});
  }
  engine_.Run(kDequant, plan, buffers.list());
  offsets_ = std::move(offsets);
  return true;
}

}  // namespace ort_aie::npu_target
