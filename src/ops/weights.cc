#include "ops/weights.h"

#include "base/error.h"
#include "ops/format.h"

namespace ort_aie {
namespace {

DataType TypeOf(WeightForm form) {
  return form == WeightForm::kBf16 ? DataType::kBfloat16 : DataType::kUint8;
}

WeightForm FormOf(const WeightAttributes& attributes) {
  if (attributes.form) return *attributes.form;
  const int64_t bits = attributes.bits;
  Require(q4nx::IsBits(bits), "attribute bits must be 2, 4 or 8, got ", bits);
  return q4nx::FormOfBits(bits);
}

}  // namespace

void CheckFormat(int64_t format) {
  Require(format == kFormat, "the model has format ", format, ", but this library reads format ",
          kFormat, "; compile the model again with this version (ort-aie compile)");
}

Shape BlocksShape(int64_t n, int64_t k, WeightForm form) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(TypeOf(form)));
  return {q4nx::RowBlocks(n), q4nx::ColBlocks(k), q4nx::BlockBytes(form) / element_bytes};
}

Weights CheckWeights(const char* name, const WeightAttributes& attributes, const Tensor& w,
                     std::optional<int64_t> experts) {
  CheckFormat(attributes.format);
  const int64_t k = attributes.k, n = attributes.n;
  Require(k > 0 && n > 0, "attributes K and N must be positive, got K=", k, " N=", n);
  const WeightForm form = FormOf(attributes);
  Require(static_cast<bool>(w), "input ", name, " must be a constant initializer");
  Shape expected = BlocksShape(n, k, form);
  if (experts) expected = {*experts, expected[0], expected[1], expected[2]};
  Require(w.type == TypeOf(form) && w.shape == expected, "input ", name, " must be ",
          NameOf(TypeOf(form)), " ", expected, " for K=", k, " N=", n,
          form == WeightForm::kQ2NX   ? " bits=2"
          : form == WeightForm::kQ8NX ? " bits=8"
                                      : "",
          ", got ", NameOf(w.type), " ", w.shape);
  const Size bytes = q4nx::BytesOfBlocks<Size>(n, k, form) * experts.value_or(1);
  Require(bytes == w.bytes, "input ", name, " has ", w.bytes, " bytes, expected ", bytes,
          " for K=", k, " N=", n);
  return {w.as<uint8_t>(), k, n, form};
}

}  // namespace ort_aie
