// The format number that a compiled model carries on each aie.* node (attribute `format`). It
// increases when Q4NX bytes or an op's meaning change. The library refuses numbers that it does not
// know.
#pragma once

#include <cstdint>

namespace ort_aie {

inline constexpr int64_t kFormat = 1;
// Of a node that states the form of its weights, in attributes group and minima (ops/weights.h).
inline constexpr int64_t kFormatOfForms = 2;
// Of a node that may also state a type of GGUF files, in attribute type.
inline constexpr int64_t kFormatOfFiles = 3;

}  // namespace ort_aie
