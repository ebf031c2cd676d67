// Executes batches: their memory on the device, what the host does before and after, and the runs.
#pragma once

#include <cstddef>
#include <memory>

#include "base/error.h"
#include "targets/npu/engine.h"
#include "targets/npu/plan_memory.h"
#include "targets/npu/schedule/batch.h"

namespace ort_aie::npu_target {

// The device does not have room for the rows of a batch. It may have room for fewer steps.
class NoRoom : public Error {
 public:
  explicit NoRoom(const std::string& message) : Error(ErrorCode::kRuntime, message) {}
};

// Where the rows of a batch come from.
struct BatchRows {
  // Keeps the rows of the batch that begins with step `first`, for the next call.
  PlanMemory* kept = nullptr;
  size_t first = 0;
  // Or a buffer that is passed from batch to batch, so that gigabytes of a long prompt's rows are
  // locked and flushed only once.
  std::shared_ptr<Buffer>* passed_on = nullptr;
};

// Runs a finished batch on overlays that read weights in `form`. Throws NoRoom; then nothing has
// run.
void RunBatch(Engine& engine, const Batch& batch, const WeightForm& form, const BatchRows& rows);

}  // namespace ort_aie::npu_target
