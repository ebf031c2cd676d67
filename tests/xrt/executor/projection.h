// A projection of random weights, on a target and on the host's.
#pragma once

#include <memory>
#include <vector>

#include "bench.h"

namespace ort_aie::xrt {

struct ProjectionCase {
  int64_t rows = 1, k = 512, n = 256;
  DataType type = DataType::kFloat32;
  bool bias = false, norm = false, skip = false, gated = false, gelu = false;
};

class Projection {
 public:
  explicit Projection(const ProjectionCase& c)
      : c(c), weights(Weights(c.n, c.k)), a(c.type, Exact(c.rows * c.k)), y(c.type, c.rows * c.n) {
    if (c.gated) up = Weights(c.n, c.k);
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
    if (c.gelu) step.activation = Activation::kGeluTanh;
    step.kept = kept;
    return step;
  }

  // What the host target makes of the same step.
  struct Outputs {
    Values y, sum;
  };
  Outputs OnHost() {
    Outputs outputs{Values(c.type, c.rows * c.n), Values(c.type, c.skip ? c.rows * c.k : 0)};
    MatMulStep step = Step();
    step.y = outputs.y.data();
    step.sum = outputs.sum.data();
    HostTarget().Execute({step}, kThreads);
    return outputs;
  }

  // Activations are exact in bfloat16. So without a norm, what differs is that the device rounds
  // its products, and the order of sums in float32; with one, both round x, which may fall to
  // different sides: two units of each x. Behind a gate, act(g) * u has a slope of at most 1.2 |u|
  // and |g|.
  std::vector<double> Bounds() const {
    std::vector<std::vector<float>> matrices;
    for (const auto* blocks : {&weights, &up}) {
      if (blocks->empty()) continue;
      matrices.emplace_back(static_cast<size_t>(c.n * c.k));
      q4nx::Dequantize(blocks->data(), c.n, c.k, matrices.back().data());
    }
    std::vector<float> x = a.floats();
    if (c.skip) {
      const std::vector<float> more = skip.floats();
      for (size_t i = 0; i < x.size(); ++i) x[i] += more[i];
    }
    if (c.norm) {
      const std::vector<float> weight = norm.floats();
      for (int64_t r = 0; r < c.rows; ++r) {
        host::SelectedKernels().rms_norm(weight.data(), c.k, 1e-5f, x.data() + r * c.k);
      }
    }
    const double moved = (c.norm ? 2 * kUnit : 0) + static_cast<double>(c.k) * 0x1p-24;
    std::vector<double> bounds;
    for (int64_t i = 0; i < c.rows * c.n; ++i) {
      double product[2] = {}, error[2] = {};
      for (size_t m = 0; m < matrices.size(); ++m) {
        const float* w = matrices[m].data() + i % c.n * c.k;
        double size = 0;
        for (int64_t j = 0; j < c.k; ++j) {
          const double term = double{w[j]} * double{x[static_cast<size_t>(i / c.n * c.k + j)]};
          product[m] += term;
          size += std::abs(term);
        }
        // A prompt's weights are rounded as well, by both, from sums that may differ in a bit.
        error[m] = (moved + (c.rows > 1 ? 0x1p-20 : 0)) * size;
        error[m] += kUnit * (std::abs(product[m]) + error[m]);
      }
      const double bias_size = c.bias ? 2 : 0;
      bounds.push_back(c.gated ? 1.2 * error[0] * (std::abs(product[1]) + error[1]) +
                                     std::abs(product[0]) * error[1] +
                                     kUnit * std::abs(product[0] * product[1])
                               : error[0] + kUnit * bias_size);
      if (c.type == DataType::kBfloat16) {  // the host's result is rounded, too
        bounds.back() +=
            kUnit * (std::abs(c.gated ? product[0] * product[1] : product[0]) + bias_size);
      }
      bounds.back() += c.type == DataType::kFloat16 ? 0x1p-10 * std::abs(product[0]) + 1e-3 : 1e-6;
    }
    return bounds;
  }

  void Compare(const Outputs& want) {
    Near("y", y, want.y, Bounds());
    Check(sum.bytes == want.sum.bytes, "the sum is not the host's");
  }

  const ProjectionCase c;
  std::vector<uint8_t> weights, up;
  Values a, bias, norm, skip, sum, y;
  std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();
};

}  // namespace ort_aie::xrt
