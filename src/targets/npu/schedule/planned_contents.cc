#include "targets/npu/schedule/planned_contents.h"

#include <algorithm>

#include "q4nx/layout.h"
#include "targets/npu/schedule/attention.h"
#include "targets/npu/schedule/reasons.h"

namespace ort_aie::npu_target {
namespace {

// Has a size and no memory.
class Planned final : public Buffer {
 public:
  explicit Planned(size_t bytes) : bytes_(bytes) {}
  uint8_t* host() override { return nullptr; }
  size_t size() const override { return bytes_; }
  void ToDevice(size_t, size_t) override {}
  void FromDevice(size_t, size_t) override {}

 private:
  const size_t bytes_;
};

}  // namespace

PlannedContents::PlannedContents(const DeviceFacts& facts, const Plan& plan, bool planned)
    : facts_(facts), form_(planned ? FormOfPlan(facts, plan) : q4nx::kShipping) {}

DeviceMemory PlannedContents::Chain::Take(int64_t bytes) {
  if (buffer == nullptr || used + bytes > static_cast<int64_t>(kMaxBufferBytes)) {
    buffer = std::make_shared<Planned>(kMaxBufferBytes);
    used = 0;
  }
  return {buffer, std::exchange(used, used + bytes)};
}

DeviceMemory PlannedContents::WeightsAt(const uint8_t* blocks, const MatMulStep& step) {
  if (blocks == nullptr) return {};
  const auto known = weights_.find(blocks);
  if (known != weights_.end()) return known->second;
  const WeightForm form = CanBeQ4nx(step.form) ? form_ : step.form;
  const int64_t bytes = q4nx::BytesOfBlocks(DeviceRows(step.n), step.k, form);
  const bool in_place =
      form == step.form && bytes == q4nx::BytesOfBlocks(step.n, step.k, step.form);
  return weights_[blocks] = (in_place ? in_place_ : copied_).Take(bytes);
}

WeightPlaces PlannedContents::Weights(const MatMulStep& step) {
  return {WeightsAt(step.weights, step), WeightsAt(step.up_weights, step)};
}

CachePlace PlannedContents::Cache(const AttentionStep& step) {
  const auto [found, added] = rows_.try_emplace(&step, step);
  CacheRows& rows = found->second;
  if (added) {
    const int64_t capacity = rows.CapacityFor(step, TokensTogether(facts_, step));
    const DeviceMemory place = caches_.Take(rows.BytesOf(capacity));
    rows.Place(place.buffer, place.offset, capacity);
    rows.Empty(step);
  }
  return {rows, nullptr};
}

ScratchBuffers PlannedContents::TakeScratch(size_t bytes, bool both, ScratchBuffers) {
  ScratchBuffers scratch;
  for (size_t i = 0; i < (both ? 2u : 1u); ++i) {
    if (scratch_[i] == nullptr || scratch_[i]->size() < bytes) {
      scratch_[i] = std::make_shared<Planned>(bytes);
    }
    scratch.buffers[i] = scratch_[i];
  }
  return scratch;
}

}  // namespace ort_aie::npu_target
