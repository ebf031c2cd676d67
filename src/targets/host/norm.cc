// A norm by itself, with the same arithmetic as a norm inside a projection (projection_rows.cc).
#include <cstring>

#include "targets/host/host_target.h"
#include "targets/host/scratch.h"
#include "targets/host/work.h"

namespace ort_aie::host {

void RunNorm(const NormStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const float* weight = Floats(kernels, step.type, step.weight, step.k, Purpose::kNormWeight);
  const bool is_float = step.type == DataType::kFloat32;
  threads.ParallelFor(step.rows, FunctionNs(step.k), [&](int64_t row) {
    const int64_t first = row * step.k;
    const auto load = [&](const void* from, Purpose purpose) {
      return Floats(kernels, step.type, Advance(from, step.type, first), step.k, purpose);
    };
    void* y = Advance(step.y, step.type, first);
    float* gate = nullptr;
    if (step.gate != nullptr) {
      gate = Scratch<float>(Purpose::kGate, step.k);
      const auto apply = step.gate_function == Function::kSilu ? kernels.silu : kernels.sigmoid;
      apply(load(step.gate, Purpose::kSkip), step.k, gate);
    }
    const float* a = load(step.a, Purpose::kRow);
    float* x = is_float ? static_cast<float*>(y) : Scratch<float>(Purpose::kTile, step.k);
    if (step.skip != nullptr) {
      kernels.add(a, load(step.skip, Purpose::kSkip), step.k, x);
    } else if (a != x) {
      std::memcpy(x, a, static_cast<size_t>(step.k) * sizeof(float));
    }
    if (step.sum != nullptr) {
      FromFloat(kernels, step.type, x, step.k, Advance(step.sum, step.type, first));
    }
    kernels.rms_norm(weight, step.k, step.epsilon, x);
    if (gate != nullptr) kernels.multiply(x, gate, step.k, x);
    if (!is_float) FromFloat(kernels, step.type, x, step.k, y);
  });
}

}  // namespace ort_aie::host
