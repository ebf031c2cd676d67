// The sequences of a manifest, from JSON (the statements of ort_aie_ep/npu/terms/sequence.py).
#pragma once

#include <string>

#include "npu/json_reader.h"
#include "npu/manifest.h"

namespace ort_aie::npu {

// `manifest` already has its fifos and workers.
Sequence ParseSequence(const Json& value, const std::string& name, const std::string& path,
                       const Manifest& manifest);

}  // namespace ort_aie::npu
