// Unquantised projections on the device.
#pragma once

#include "targets/npu/engine.h"

namespace ort_aie::npu_target {

// B is pinned where it lies: blocks have the overlay's order.
void RunGemm(Engine& engine, const GemmStep& step, const ThreadPool& threads);

}  // namespace ort_aie::npu_target
