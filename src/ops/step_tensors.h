// Which memory a step reads and writes, for code that reorders steps or keeps their results
// elsewhere.
#pragma once

#include <cstddef>
#include <functional>

#include "ops/plan.h"

namespace ort_aie {

using TakeTensor = std::function<void(const void* tensor, size_t bytes)>;

// All tensors that are present, in any order. Weights are left out, because no step writes them.
void ForEachRead(const Step& step, const TakeTensor& take);
void ForEachWrite(const Step& step, const TakeTensor& take);

// Whether the step reads any of these bytes.
bool Reads(const Step& step, const void* tensor, size_t bytes);

}  // namespace ort_aie
