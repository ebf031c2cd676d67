// Rows of a prompt that nothing reads. Whoever generates reads the logits of the last token alone
// (ops/logits.h), and after the last layer's keys and values no other token counts.
#pragma once

#include <optional>

#include "ops/plan.h"
#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {

// The plan without the first rows of its last steps, if nothing reads them. All others keep their
// bits.
std::optional<Plan> WithoutUnreadRows(const Plan& plan, const Kernels& kernels);

}  // namespace ort_aie::host
