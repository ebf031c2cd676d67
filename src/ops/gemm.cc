#include "ops/gemm.h"

#include "base/error.h"
#include "ops/format.h"
#include "q4nx/layout.h"

namespace ort_aie {

Gemm::Gemm(const GemmAttributes& attributes, const Tensor& w, const Options& options)
    : weights_(w.as<uint16_t>()),
      k_(attributes.k),
      n_(attributes.n),
      prompt_chunk_(options.prompt_chunk) {
  CheckFormat(attributes.format);
  Require(k_ > 0 && n_ > 0, "attributes K and N must be positive, got K=", k_, " N=", n_);
  Require(static_cast<bool>(w), "input W must be a constant initializer");
  const Shape expected = {q4nx::RowBlocks(n_), q4nx::ColBlocks(k_), kBf16BlockElements};
  Require(w.type == DataType::kBfloat16 && w.shape == expected, "input W must be bfloat16 ",
          ToString(expected), " for K=", k_, " N=", n_, ", got ", NameOf(w.type), " ",
          ToString(w.shape));
  const Size bytes = ByteCount(w.type, expected);
  Require(bytes == w.bytes, "input W has ", w.bytes, " bytes, expected ", bytes);
}

Shape Gemm::OutputShape(const Tensor& a) const {
  Require(IsFloat(a.type), "input A must be float, float16 or bfloat16, got ", NameOf(a.type));
  Require(!a.shape.empty() && a.shape.back() == k_, "input A must be (..., ", k_, "), got ",
          ToString(a.shape));
  Shape shape = a.shape;
  shape.back() = n_;
  return shape;
}

Plan Gemm::MakePlan(const Tensor& a, const Tensor& bias, void* y) const {
  const int64_t rows = ElementCount(a.shape).As("input A") / k_;
  if (bias) RequireTensor("bias", bias, a.type, {n_});
  if (rows == 0) return {};
  return {GemmStep{weights_, rows, k_, n_, a.data, bias ? bias.data : nullptr, y, a.type,
                   prompt_chunk_, kept_}};
}

}  // namespace ort_aie
