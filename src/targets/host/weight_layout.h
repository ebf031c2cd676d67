// Where kernels find the parts of a block of weights.
#pragma once

#include <bit>
#include <cstdint>

#include "q4nx/layout.h"
#include "targets/host/kernels/block_layout.h"

namespace ort_aie::host {

// symmetric as in MatMulStep. Kernels for forms of GGUF files know the layout.
constexpr BlockLayout LayoutOf(const WeightForm& form, bool symmetric) {
  if (form.kind == WeightKind::kFile) return {};
  return {.bytes = q4nx::BlockBytes(form),
          .minima = q4nx::MinimaOffset(form),
          .codes = q4nx::CodesOffset(form),
          .shift = std::countr_zero(static_cast<uint64_t>(form.group / q4nx::kGroup)),
          .symmetric = symmetric || !form.minima};
}

}  // namespace ort_aie::host
