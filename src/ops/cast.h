// aie.Cast(A) -> Y: A in another floating-point type, rounded to nearest even.
//   A  (...) float, float16 or bfloat16
//   Y  as A
// Attributes: dtype (TensorProto data type of Y: FLOAT, FLOAT16 or BFLOAT16), format.
#pragma once

#include "ops/plan.h"

namespace ort_aie {

struct CastAttributes {
  DataType type = DataType::kFloat32;
  int64_t format = 0;
};

class Cast {
 public:
  explicit Cast(const CastAttributes& attributes);

  Shape OutputShape(const Tensor& a) const;
  void Append(const Tensor& a, void* y, Plan& plan) const;
  DataType type() const { return type_; }

 private:
  DataType type_;
};

}  // namespace ort_aie
