#include "ops/op.h"

#include <algorithm>
#include <array>

namespace ort_aie {

std::span<const OpDescription* const> AllOps() {
  static const std::array all = {
      &Q4NXMatMulDescription(), &GemmDescription(),       &Q4NXGatedMLPDescription(),
      &GatedGemmDescription(),  &Q4NXGatherDescription(), &FlowAttentionDescription(),
      &RMSNormDescription(),    &AddDescription(),        &MulDescription(),
      &ActivationDescription(), &CastDescription(),       &GatherDescription(),
      &SelectRowsDescription(), &Q4NXMoEDescription(),    &GatedRMSNormDescription(),
  };
  return all;
}

const OpDescription* FindOp(std::string_view name) {
  const auto found = std::ranges::find(AllOps(), name, &OpDescription::name);
  return found != AllOps().end() ? *found : nullptr;
}

}  // namespace ort_aie
