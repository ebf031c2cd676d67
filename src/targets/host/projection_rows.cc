#include "targets/host/projection_rows.h"

#include "targets/host/scratch.h"

namespace ort_aie::host {

const float* NormWeight(const MatMulStep& step, const Kernels& kernels) {
  if (step.norm_weight == nullptr) return nullptr;
  return Floats(kernels, step.type, step.norm_weight, step.k, Purpose::kNormWeight);
}

void LoadSum(const MatMulStep& step, const Kernels& kernels, int64_t row, float* x) {
  const int64_t first = row * step.k;
  ToFloat(kernels, step.type, Advance(step.a, step.type, first), step.k, x);
  if (step.skip == nullptr) return;
  float* skip = Scratch<float>(Purpose::kSkip, step.k);
  ToFloat(kernels, step.type, Advance(step.skip, step.type, first), step.k, skip);
  kernels.add(x, skip, step.k, x);
}

void StoreSum(const MatMulStep& step, const Kernels& kernels, int64_t row, const float* x) {
  FromFloat(kernels, step.type, x, step.k, Advance(step.sum, step.type, row * step.k));
}

void LoadRow(const MatMulStep& step, const Kernels& kernels, const float* norm_weight, int64_t row,
             float* x) {
  LoadSum(step, kernels, row, x);
  if (step.sum != nullptr) StoreSum(step, kernels, row, x);
  if (norm_weight != nullptr) kernels.rms_norm(norm_weight, step.k, step.norm_epsilon, x);
}

void StoreResults(const MatMulStep& step, const Kernels& kernels, int64_t row, int64_t n0,
                  int64_t count, float* y, float* up) {
  if (IsGated(step)) {
    (step.activation == Activation::kSilu ? kernels.gate_silu : kernels.gate_gelu_tanh)(up, count,
                                                                                        y);
  }
  if (step.bias != nullptr) {
    ToFloat(kernels, step.type, Advance(step.bias, step.type, n0), count, up);
    kernels.add(y, up, count, y);
  }
  void* to = Advance(step.y, step.type, row * step.n + n0);
  if (to != y) FromFloat(kernels, step.type, y, count, to);
}

}  // namespace ort_aie::host
