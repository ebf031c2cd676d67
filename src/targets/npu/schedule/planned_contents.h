// A device on which nothing has been put yet: places without memory, for whoever only wants to know
// a schedule.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "targets/npu/schedule/device_contents.h"
#include "targets/npu/schedule/facts.h"

namespace ort_aie::npu_target {

class PlannedContents final : public DeviceContents {
 public:
  // planned: whether the plan is a node's with several steps, which keeps memory.
  PlannedContents(const DeviceFacts& facts, const Plan& plan, bool planned);

  WeightForm form() const override { return form_; }
  uint64_t generation() const override { return 0; }
  WeightPlaces Weights(const MatMulStep& step) override;
  // A cache of which the device has nothing, with room for the step.
  CachePlace Cache(const AttentionStep& step) override;
  ScratchBuffers TakeScratch(size_t bytes, bool both, ScratchBuffers before) override;

 private:
  // Buffers that are filled one after the other.
  struct Chain {
    std::shared_ptr<Buffer> buffer;
    int64_t used = 0;

    DeviceMemory Take(int64_t bytes);
  };
  DeviceMemory WeightsAt(const uint8_t* blocks, const MatMulStep& step);

  const DeviceFacts& facts_;
  const WeightForm form_;
  // What the device reads where the host has it, what is copied, caches.
  Chain in_place_, copied_, caches_;
  std::map<const uint8_t*, DeviceMemory> weights_;
  std::map<const AttentionStep*, CacheRows> rows_;
  std::shared_ptr<Buffer> scratch_[2];
};

}  // namespace ort_aie::npu_target
