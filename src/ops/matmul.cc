#include "ops/matmul.h"

#include <algorithm>

#include "base/error.h"
#include "ops/logits.h"

namespace ort_aie {

MatMul::MatMul(const char* name, const MatMulAttributes& attributes, const Tensor& w,
               const Options& options)
    : weights_(CheckWeights(name, attributes.weights, w)),
      // Weights that were not quantised never use int8 products.
      numerics_(weights_.form.kind == WeightKind::kBf16
                    ? Numerics::kBf16
                    : options.NumericsFor(attributes.accuracy_level)),
      prompt_chunk_(options.prompt_chunk),
      symmetric_(attributes.symmetric == 1 || !weights_.form.minima),
      norm_epsilon_(attributes.norm_epsilon),
      logits_(attributes.logits == 1) {}

int64_t MatMul::RowsOf(const Tensor& a) const {
  const int64_t rows = ElementCount(a.shape).As("input A") / weights_.k;
  const bool choose = logits_ && a.shape.size() == 3 && a.shape[0] == 1 && LogitsToKeep() > 0;
  return choose ? std::min(rows, LogitsToKeep()) : rows;
}

Shape MatMul::OutputShape(const Tensor& a) const {
  Require(IsFloat(a.type), "input A must be float, float16 or bfloat16, got ", NameOf(a.type));
  Require(!a.shape.empty() && a.shape.back() == weights_.k, "input A must be (..., ", weights_.k,
          "), got ", a.shape);
  Shape shape = a.shape;
  if (logits_ && shape.size() == 3 && shape[0] == 1) shape[1] = RowsOf(a);
  shape.back() = weights_.n;
  return shape;
}

void MatMul::Append(const Inputs& inputs, void* y, void* sum, Plan& plan) const {
  const auto& [a, bias, norm_weight, skip] = inputs;
  const int64_t rows = RowsOf(a), all = ElementCount(a.shape).As("input A") / weights_.k;
  if (bias) RequireTensor("bias", bias, a.type, {weights_.n});
  if (norm_weight) RequireTensor("norm_weight", norm_weight, a.type, {weights_.k});
  if (skip) {
    Require(static_cast<bool>(norm_weight), "input skip needs input norm_weight");
    RequireTensor("skip", skip, a.type, a.shape);
  }
  if (rows == 0) return;
  auto& step = std::get<MatMulStep>(plan.steps.emplace_back(MatMulStep{}));
  step.weights = weights_.blocks;
  step.form = weights_.form;
  step.rows = rows;
  step.k = weights_.k;
  step.n = weights_.n;
  const int64_t before = all - rows;  // rows that do not count
  step.a = Advance(a.data, a.type, before * weights_.k);
  step.bias = bias ? bias.data : nullptr;
  step.y = y;
  step.type = a.type;
  step.numerics = numerics_;
  step.symmetric = symmetric_;
  step.norm_weight = norm_weight ? norm_weight.data : nullptr;
  step.skip = skip ? Advance(skip.data, a.type, before * weights_.k) : nullptr;
  step.sum = skip && before == 0 ? sum : nullptr;
  step.norm_epsilon = norm_epsilon_;
  step.kept = kept_;
  step.prompt_chunk = prompt_chunk_;
}

}  // namespace ort_aie
