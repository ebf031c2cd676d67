// A projection of random weights, on a target and on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "bench.h"
#include "q4nx/bfloat16.h"
#include "targets/host/host_target.h"
#include "targets/host/kernels/choice.h"
#include "targets/npu/schedule/designs.h"

namespace ort_aie::npu_target {

inline constexpr WeightForm kBf16 = {WeightKind::kBf16};

struct ProjectionCase {
  int64_t rows = 1, k = 512, n = 256;
  DataType type = DataType::kFloat32;
  bool bias = false, norm = false, skip = false, gated = false, gelu = false;
  WeightForm form = {};
};

// Blocks from a matrix (n, k), exact in bfloat16.
inline std::vector<uint8_t> Bf16Blocks(const std::vector<float>& matrix, int64_t n, int64_t k) {
  const int64_t columns = q4nx::ColBlocks(k);
  std::vector<uint8_t> blocks(static_cast<size_t>(q4nx::BytesOfBlocks(n, k, kBf16)));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t col = 0; col < k; ++col) {
      const int64_t block = row / 32 * columns + col / 256;
      const int64_t tile = col % 256 / 8 * 4 + row % 32 / 8;
      const uint16_t weight = FloatToBfloat16(matrix[static_cast<size_t>(row * k + col)]);
      const int64_t element = block * 32 * 256 + tile * 64 + col % 8 * 8 + row % 8;
      std::memcpy(blocks.data() + 2 * element, &weight, sizeof(weight));
    }
  }
  return blocks;
}

class Projection {
 public:
  explicit Projection(const ProjectionCase& c)
      : c(c), weights(NewWeights()), a(c.type, Exact(c.rows * c.k)), y(c.type, c.rows * c.n) {
    if (c.gated) up = NewWeights();
    if (c.bias) bias = Values(c.type, Exact(c.n));
    if (c.norm) norm = Values(c.type, Exact(c.k));
    if (c.skip) {
      skip = Values(c.type, Exact(c.rows * c.k));
      sum = Values(c.type, c.rows * c.k);
    }
  }

  MatMulStep Step() {
    MatMulStep step{};
    step.weights = weights.data();
    step.form = c.form;
    step.rows = c.rows;
    step.k = c.k;
    step.n = c.n;
    step.a = a.data();
    step.y = y.data();
    step.type = c.type;
    step.numerics = Numerics::kBf16;
    if (c.bias) step.bias = bias.data();
    if (c.norm) step.norm_weight = norm.data();
    if (c.skip) {
      step.skip = skip.data();
      step.sum = sum.data();
    }
    step.norm_epsilon = 1e-5f;
    if (c.gated) step.up_weights = up.data();
    if (c.gated) step.activation = c.gelu ? Activation::kGeluTanh : Activation::kSilu;
    step.kept = kept;
    return step;
  }

  // The host target's results for the same step.
  struct Outputs {
    Values y, sum;
  };
  Outputs OnHost() {
    Outputs outputs{Values(c.type, c.rows * c.n), Values(c.type, c.skip ? c.rows * c.k : 0)};
    MatMulStep step = Step();
    step.y = outputs.y.data();
    step.sum = outputs.sum.data();
    // A device dequantises for any number of rows.
    if (c.rows > 1) {
      host::RunGemm(step, host::SelectedKernels(), kThreads);
    } else {
      HostTarget().Execute({step}, kThreads);
    }
    return outputs;
  }

  void Compare(const Outputs& want) const {
    Near("y", y, want.y, c.n);
    Check(sum.bytes == want.sum.bytes, "the sum is not the host's");
  }
  // For a step whose sum the device computes and rounds.
  void CompareRounded(const Outputs& want) const {
    Near("sum", sum, want.sum, c.k);
    Near("y", y, want.y, c.n);
  }

  const ProjectionCase c;
  std::vector<uint8_t> weights, up;
  Values a, bias, norm, skip, sum, y;
  std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();

 private:
  std::vector<uint8_t> NewWeights() const {
    if (c.form.kind == WeightKind::kBf16) return Bf16Blocks(Exact(c.n * c.k), c.n, c.k);
    return Weights(c.n, c.k, c.form);
  }
};

}  // namespace ort_aie::npu_target
