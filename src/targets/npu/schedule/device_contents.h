// What stays on a device between batches, as a schedule needs it: where it is. The runner puts it
// there when it is asked; whoever only wants to know the schedule has places without memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "ops/plan.h"
#include "targets/npu/buffer.h"
#include "targets/npu/schedule/cache_rows.h"

namespace ort_aie::npu_target {

class KvCopy;

// W, and U if the projection is gated.
struct WeightPlaces {
  DeviceMemory weights, up;
};

// The copy of a layer's cache before a step, with what it has of the past, and, where there is
// memory, what moves its rows.
struct CachePlace {
  const CacheRows& rows;
  KvCopy* copy;
};

// The two buffers of a prompt's dequantised weights, for one prompt's projection at a time.
struct ScratchBuffers {
  std::unique_lock<std::mutex> lock;
  std::shared_ptr<Buffer> buffers[2];
};

class DeviceContents {
 public:
  virtual ~DeviceContents() = default;
  // The form in which the weights of the plan's projections are there.
  virtual WeightForm form() const = 0;
  // Changes when all that was there is lost.
  virtual uint64_t generation() const = 0;
  virtual WeightPlaces Weights(const MatMulStep& step) = 0;
  virtual CachePlace Cache(const AttentionStep& step) = 0;
  // Two buffers of `bytes`, or one. If the caller passes what it took before, nobody else gets it
  // in between.
  virtual ScratchBuffers TakeScratch(size_t bytes, bool both, ScratchBuffers before = {}) = 0;
};

}  // namespace ort_aie::npu_target
