// Projections, Y = x . W^T + bias with constant W. x is A; with norm_weight, x is the RMS norm of
// A; with skip as well, x is the RMS norm of sum = A + skip.
//
// aie.Q4NXMatMul(A, W, bias?, norm_weight?, skip?) -> Y, sum?: W in Q4NX, Q2NX, Q8NX, or a form of
// GGUF files.
// aie.GEMM, the same for weights that were not quantised, such as those of a vision tower: A is
// rounded to bfloat16 for the products, sums are float32.
//   A           (..., K) float, float16 or bfloat16
//   W           blocks of the shape BlocksShape (ops/weights.h)
//   bias        (N) of A's type
//   norm_weight (K) of A's type
//   skip        as A; needs norm_weight
//   Y           (..., N) of A's type
//   sum         as A, if skip is given and the output is wanted
// Attributes: K, N, norm_epsilon, format; logits (1: of A (1, rows, K), only the last rows count
// that ops/logits.h says; default 0); for Q4NXMatMul also bits (4, the default, 2 or 8), with
// format 2 group (32, 64, 128 or 256) and minima (whether they are stored), or with format 3 type
// (a name of q4nx/file_forms.h, which then says all of these), accuracy_level (as MatMulNBits
// defines it) and symmetric (1: every min is -2^(bits-1) * scale, or with 8 bits every zero point
// 128, so that they need not be read; default 0; implied without minima).
#pragma once

#include <memory>

#include "ops/options.h"
#include "ops/plan.h"
#include "ops/weights.h"

namespace ort_aie {

struct MatMulAttributes {
  WeightAttributes weights;
  int64_t accuracy_level = 0, symmetric = 0;
  float norm_epsilon = 0;
  int64_t logits = 0;
};

class MatMul {
 public:
  struct Inputs {
    Tensor a, bias, norm_weight, skip;
  };

  // `name` is the name of the weights in errors.
  MatMul(const char* name, const MatMulAttributes& attributes, const Tensor& w,
         const Options& options);

  Shape OutputShape(const Tensor& a) const;
  // sum is the second output's buffer, or null.
  void Append(const Inputs& inputs, void* y, void* sum, Plan& plan) const;

 private:
  // Rows of `a` that count: the last ones.
  int64_t RowsOf(const Tensor& a) const;

  Weights weights_;
  Numerics numerics_;
  int64_t prompt_chunk_;
  bool symmetric_;
  float norm_epsilon_;
  bool logits_;
  std::shared_ptr<KeptState> kept_ = std::make_shared<KeptState>();
};

}  // namespace ort_aie
