// What a schedule depends on beside the plan: the packages of a device, and how much of its memory
// a prompt takes.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "ops/plan.h"
#include "targets/npu/schedule/designs.h"

namespace ort_aie::npu_target {

struct DeviceFacts {
  // Whether there is a package, and its manifest, or null.
  HasOverlay has;
  std::function<const npu::Manifest*(std::string_view package)> overlay;
  // Whether two packages are in one xclbin, so that a change from one to the other is cheap.
  std::function<bool(std::string_view, std::string_view)> share_context;
  // As in ExecutorOptions.
  int64_t weight_bytes = 0, row_bytes = 0, query_bytes = 0;
};

// The form in which the device has the weights of a plan's projections.
WeightForm FormOfPlan(const DeviceFacts& facts, const Plan& plan);

}  // namespace ort_aie::npu_target
