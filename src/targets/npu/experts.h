// Layers of experts on the device: the host chooses the experts of each row, and each expert is two
// projections, which go to the device like those of any plan.
#pragma once

#include <functional>

#include "targets/npu/engine.h"
#include "targets/target.h"

namespace ort_aie::npu_target {

// The experts' weights are pinned once for a layer, or copied if the device cannot read them as
// they are. `execute` runs a plan of projections.
void RunExperts(Engine& engine, const MoEStep& step, const ThreadPool& threads,
                const std::function<void(const Plan&)>& execute);

}  // namespace ort_aie::npu_target
