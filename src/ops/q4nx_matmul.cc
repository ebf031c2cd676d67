#include "ops/q4nx_matmul.h"

#include "ops/error.h"

namespace ort_aie {

Q4NXMatMul::Q4NXMatMul(const Q4NXMatMulAttributes& attributes, const Tensor& w,
                       const Options& options)
    : weights_(CheckQ4NXWeights(attributes.format, attributes.k, attributes.n, w)),
      numerics_(options.NumericsFor(attributes.accuracy_level)),
      symmetric_(attributes.symmetric == 1) {}

Shape Q4NXMatMul::OutputShape(const Tensor& a) const {
  Require(IsFloat(a.type), "input A must be float, float16 or bfloat16, got ", NameOf(a.type));
  Require(!a.shape.empty() && a.shape.back() == weights_.k, "input A must be (..., ", weights_.k,
          "), got ", ToString(a.shape));
  Shape shape = a.shape;
  shape.back() = weights_.n;
  return shape;
}

Plan Q4NXMatMul::MakePlan(const Tensor& a, const Tensor& bias, void* y) const {
  if (bias) {
    Require(bias.type == a.type && bias.shape == Shape{weights_.n}, "input bias must be ",
            NameOf(a.type), " (", weights_.n, "), got ", NameOf(bias.type), " ",
            ToString(bias.shape));
  }
  const int64_t rows = ElementCount(a.shape) / weights_.k;
  if (rows == 0) return {};
  return {MatMulStep{weights_.blocks, rows, weights_.k, weights_.n, a.data,
                     bias ? bias.data : nullptr, y, a.type, numerics_, symmetric_}};
}

}  // namespace ort_aie
