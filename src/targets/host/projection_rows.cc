#include "targets/host/projection_rows.h"

#include <limits>

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

namespace {

// y += bias, for out-features [n0, n0 + count).
void AddBias(const MatMulStep& step, const Kernels& kernels, const void* bias, int64_t n0,
             int64_t count, float* y) {
  if (bias == nullptr) return;
  kernels.add(y, Floats(kernels, step.type, Advance(bias, step.type, n0), count, Purpose::kBias),
              count, y);
}

// Limits keep a NaN, as they do in ONNX Runtime.
float AtMost(float x, float limit) { return limit < x ? limit : x; }
float AtLeast(float x, float limit) { return x < limit ? limit : x; }

// y = silu(alpha * y) / alpha is y * sigmoid(alpha * y).
void ApplySwiglu(const Swiglu& swiglu, const Kernels& kernels, int64_t count, const float* up,
                 float* y) {
  const float before = swiglu.limit_after ? std::numeric_limits<float>::infinity() : swiglu.limit;
  for (int64_t i = 0; i < count; ++i) y[i] = swiglu.alpha * AtMost(y[i], before);
  kernels.silu(y, count, y);
  const float after = swiglu.limit_after ? swiglu.limit : std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < count; ++i) {
    const float linear = AtLeast(AtMost(up[i], swiglu.limit), -swiglu.limit);
    y[i] = AtMost(y[i] / swiglu.alpha, after) * (linear + swiglu.beta);
  }
}

void Activate(const MatMulStep& step, const Kernels& kernels, int64_t count, const float* up,
              float* y) {
  const bool gated = IsGated(step);
  switch (step.activation) {
    case Activation::kSilu:
      return gated ? kernels.gate_silu(up, count, y) : kernels.silu(y, count, y);
    case Activation::kGeluTanh:
      return gated ? kernels.gate_gelu_tanh(up, count, y) : kernels.gelu_tanh(y, count, y);
    case Activation::kSwiglu:
      return ApplySwiglu(step.swiglu, kernels, count, up, y);
    case Activation::kRelu:
      for (int64_t i = 0; i < count; ++i) y[i] = AtLeast(y[i], 0.0f);
      break;
    case Activation::kNone:
      break;
  }
  if (gated) kernels.multiply(y, up, count, y);
}

}  // namespace

void StoreResults(const MatMulStep& step, const Kernels& kernels, int64_t row, int64_t n0,
                  int64_t count, float* y, float* up) {
  AddBias(step, kernels, step.bias, n0, count, y);
  if (IsGated(step)) AddBias(step, kernels, step.up_bias, n0, count, up);
  Activate(step, kernels, count, up, y);
  void* to = Advance(step.y, step.type, row * step.n + n0);
  if (to != y) FromFloat(kernels, step.type, y, count, to);
}

}  // namespace ort_aie::host
