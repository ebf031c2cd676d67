// Which memory a step reads and writes, for whoever changes the order of steps or keeps what they
// leave elsewhere.
#pragma once

#include <cstddef>
#include <functional>

#include "ops/plan.h"

namespace ort_aie {

using TakeTensor = std::function<void(const void* tensor, size_t bytes)>;

// Tensors that are there, in no particular order; weights, which no step writes, are left out.
void ForEachRead(const Step& step, const TakeTensor& take);
void ForEachWrite(const Step& step, const TakeTensor& take);

// Whether the step reads any of these bytes.
bool Reads(const Step& step, const void* tensor, size_t bytes);

}  // namespace ort_aie
