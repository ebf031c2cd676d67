// The dimensions that a Reshape or a Split states.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/op.h"

namespace ort_aie {

// As the text of an attribute: "0,-1,32". SizesOf throws Error for any other text.
std::string TextOf(std::span<const int64_t> sizes);
std::vector<int64_t> SizesOf(std::string_view text);

// The dimensions of `source` in other sizes, as ONNX's Reshape has them: 0 is a dimension of
// `source`, and one may be -1. None if they are not known.
std::optional<std::vector<ShapeContext::Dim>> Reshaped(const std::vector<ShapeContext::Dim>& source,
                                                       std::span<const int64_t> sizes);

}  // namespace ort_aie
