#include "targets/npu/schedule/prompt_weights.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "q4nx/layout.h"
#include "targets/npu/schedule/reasons.h"

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kAlignment = 4096;
// For more rows, weights that are dequantised once cost less than weights that each 64 rows read
// and dequantise again, and two changes of overlays.
constexpr int64_t kShortRows = 256;

int64_t BytesOf(const DeviceFacts& facts, const MatMulStep& step) {
  return RoundUp(facts.prompts.WeightBytes(DeviceRows(step.n), q4nx::PaddedCols(step.k)),
                 kAlignment);
}

}  // namespace

bool IsShort(const DeviceFacts& facts, const MatMulStep& step) {
  return step.rows <= kShortRows && CanBeQ4nx(step.form) &&
         q4nx::PaddedCols(step.k) <= kShortGemmMaxK && DeviceRows(step.n) >= kShortGemmLeastN &&
         facts.share_context(kShortGemm, facts.prompts.gemm);
}

bool PromptWeights::HasRoom(const DeviceFacts& facts, const MatMulStep& step) {
  return step.form.kind == WeightKind::kBf16 || BytesOf(facts, step) <= facts.weight_bytes;
}

void PromptWeights::Forget() {
  offsets_.clear();
  scratch_ = {};
}

WeightPlaces PromptWeights::Get(Batch& batch, std::span<const Step> steps) {
  const auto& step = std::get<MatMulStep>(steps.front());
  const auto there = [&](const uint8_t* blocks) {
    return blocks == nullptr || offsets_.contains(blocks);
  };
  if (generation_ != contents_.generation() || !there(step.weights) || !there(step.up_weights)) {
    Dequantise(batch, steps);
  }
  const auto place = [&](const uint8_t* blocks) -> DeviceMemory {
    if (blocks == nullptr) return {};
    return {scratch_.buffers[0], offsets_.at(blocks)};
  };
  return {place(step.weights), place(step.up_weights)};
}

// Dequantises as many weights of the steps as there is room for; the first step may have two
// matrices, each of which has room. If not all of them fit, weights between two attentions that fit
// together are not divided, but left for later: the overlay changes at an attention in any case.
void PromptWeights::Dequantise(Batch& batch, std::span<const Step> steps) {
  struct Part {
    const MatMulStep* step;
    const uint8_t* blocks;
    int64_t offset;
  };
  const int64_t most = facts_.weight_bytes;
  std::vector<Part> parts;
  size_t before_attention = 0;             // parts
  int64_t bytes = 0, since_attention = 0;  // of all steps, whether there is room or not
  bool all = true;
  for (const Step& step : steps) {
    if (std::holds_alternative<AttentionStep>(step)) {
      if (!all) break;
      before_attention = parts.size();
      since_attention = 0;
    }
    const auto* projection = std::get_if<MatMulStep>(&step);
    if (projection == nullptr || projection->form.kind == WeightKind::kBf16) continue;
    if (projection->rows == 1 || !on_device_(step) || IsShort(facts_, *projection)) continue;
    std::vector<Part> own;
    int64_t end = bytes;
    for (const uint8_t* blocks : {projection->weights, projection->up_weights}) {
      const auto same = [&](const Part& part) { return part.blocks == blocks; };
      if (blocks == nullptr || std::ranges::any_of(parts, same)) continue;
      own.push_back({projection, blocks, end});
      end += BytesOf(facts_, *projection);
    }
    since_attention += end - bytes;
    all = all && (parts.empty() || end <= most);
    if (!all) continue;
    parts.insert(parts.end(), own.begin(), own.end());
    bytes = end;
  }
  if (!all && before_attention > 0 && since_attention <= most) parts.resize(before_attention);

  // Enough room for the next ones, too.
  const auto room = static_cast<size_t>(all ? bytes : std::max(bytes, most));
  if (generation_ != contents_.generation() || scratch_.buffers[0] == nullptr ||
      scratch_.buffers[0]->size() < room) {
    // The batch may already read what is there, so the memory is not released in between.
    scratch_ = contents_.TakeScratch(room, false, std::move(scratch_));
    generation_ = contents_.generation();
  }
  offsets_.clear();
  for (const Part& part : parts) {
    const WeightPlaces places = contents_.Weights(*part.step);
    const DeviceMemory& from = part.blocks == part.step->weights ? places.weights : places.up;
    const int64_t blocks =
        q4nx::RowBlocks(DeviceRows(part.step->n)) * q4nx::ColBlocks(part.step->k);
    batch.Invoke(facts_.prompts.dequant,
                 {"dequant",
                  {{"blocks", blocks}},
                  {{"w", batch.memory.View(from.buffer, from.offset)},
                   {"b", batch.memory.View(scratch_.buffers[0], part.offset)}}});
    offsets_[part.blocks] = part.offset;
  }
}

}  // namespace ort_aie::npu_target
