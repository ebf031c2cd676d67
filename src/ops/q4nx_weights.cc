#include "ops/q4nx_weights.h"

#include "base/error.h"
#include "ops/format.h"
#include "q4nx/layout.h"

namespace ort_aie {

void CheckFormat(int64_t format) {
  Require(format == kFormat, "the model has format ", format, ", this library reads format ",
          kFormat, "; compile the model again with this version (ort-aie compile)");
}

Q4NXWeights CheckQ4NXWeights(const char* name, const Q4NXWeightAttributes& attributes,
                             const Tensor& w) {
  const auto& [k, n, bits, format] = attributes;
  CheckFormat(format);
  Require(k > 0 && n > 0, "attributes K and N must be positive, got K=", k, " N=", n);
  Require(bits == 4 || bits == 2, "attribute bits must be 4 or 2, got ", bits);
  Require(static_cast<bool>(w), "input ", name, " must be a constant initializer");
  const Shape expected = {q4nx::RowBlocks(n), q4nx::ColBlocks(k), q4nx::BlockBytes(bits)};
  Require(w.type == DataType::kUint8 && w.shape == expected, "input ", name, " must be uint8 ",
          ToString(expected), " for K=", k, " N=", n, bits == 2 ? " bits=2" : "", ", got ",
          NameOf(w.type), " ", ToString(w.shape));
  const Size bytes = q4nx::BytesOfBlocks<Size>(n, k, bits);
  Require(bytes == w.bytes, "input ", name, " has ", w.bytes, " bytes, expected ", bytes,
          " for K=", k, " N=", n);
  return {w.as<uint8_t>(), k, n, bits};
}

}  // namespace ort_aie
