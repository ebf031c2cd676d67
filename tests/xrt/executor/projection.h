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

  // Bounds on the difference between the device's and the host's y.
  //
  // The activations of both are exact in bfloat16, or both round them alike, unless `moved` says
  // how much each element of the device's a, or of its a + skip, may differ. A norm passes these
  // differences on, and then both round x, possibly in different directions. Products differ by the
  // error of x, by the order of sums in float32, and by the device's rounding of its results.
  // Behind a gate, act(g) * u has a slope of at most 1.2 |u| and |g|.
  std::vector<double> Bounds(const std::vector<double>& moved = {}) const {
    std::vector<double> bounds;
    const Floats floats{a.floats(), skip.floats(), norm.floats()};
    for (int64_t row = 0; row < c.rows; ++row) {
      const auto [x, dx] = Activations(row, floats, moved);
      for (int64_t n = 0; n < c.n; ++n) bounds.push_back(Bound(n, x, dx));
    }
    return bounds;
  }

  void Compare(const Outputs& want) const {
    Near("y", y, want.y, Bounds());
    Check(sum.bytes == want.sum.bytes, "the sum is not the host's");
  }
  // For a step whose sum the device computes and rounds.
  void CompareRounded(const Outputs& want) const {
    std::vector<double> rounded;
    for (const float x : want.sum.floats()) rounded.push_back(kUnit * std::abs(x));
    Near("sum", sum, want.sum, rounded);
    Near("y", y, want.y, Bounds(rounded));
  }

  const ProjectionCase c;
  std::vector<std::vector<float>> matrices;  // of weights, and of up
  std::vector<uint8_t> weights, up;
  Values a, bias, norm, skip, sum, y;
  std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();

 private:
  struct Floats {
    std::vector<float> a, skip, norm;
  };

  // x of a row, and how much the device's x may differ.
  std::pair<std::vector<double>, std::vector<double>> Activations(
      int64_t row, const Floats& floats, const std::vector<double>& moved) const {
    const auto k = static_cast<size_t>(c.k), first = static_cast<size_t>(row) * k;
    const auto& [as, skips, scales] = floats;
    std::vector<double> x(k), dx = moved;
    dx.resize(k);
    double squares = 0, moved_squares = 0;
    for (size_t j = 0; j < k; ++j) {
      x[j] = double{as[first + j]} + (c.skip ? double{skips[first + j]} : 0);
      squares += x[j] * x[j];
      moved_squares += dx[j] * dx[j];
    }
    if (!c.norm) return {x, dx};
    // The root of the mean of squares moves at most by that of dx.
    const double rms = std::sqrt(squares / static_cast<double>(c.k) + 1e-5);
    const double relative = std::sqrt(moved_squares / static_cast<double>(c.k)) / rms;
    for (size_t j = 0; j < k; ++j) {
      const double scale = std::abs(scales[j]) / rms;
      dx[j] = scale * (dx[j] + relative / (1 - relative) * (std::abs(x[j]) + dx[j]));
      x[j] *= scales[j] / rms;
      dx[j] += 2 * kUnit * (std::abs(x[j]) + dx[j]);
    }
    return {x, dx};
  }

  // Blocks; appends their weights as float to `matrices`.
  std::vector<uint8_t> NewWeights() {
    if (c.form.kind == WeightKind::kBf16) {
      return Bf16Blocks(matrices.emplace_back(Exact(c.n * c.k)), c.n, c.k);
    }
    std::vector<uint8_t> blocks = Weights(c.n, c.k, c.form);
    matrices.emplace_back(static_cast<size_t>(c.n * c.k));
    q4nx::Dequantize(blocks.data(), c.n, c.k, matrices.back().data(), c.form);
    return blocks;
  }

  double Bound(int64_t n, const std::vector<double>& x, const std::vector<double>& dx) const {
    double product[2] = {}, error[2] = {};
    for (size_t m = 0; m < matrices.size(); ++m) {
      const float* w = matrices[m].data() + n * c.k;
      double size = 0;
      // A row that is longer than a core's memory is divided into parts, whose sums are rounded.
      const int64_t blocks = q4nx::ColBlocks(c.k);
      const int64_t parts = c.rows > 1 ? 1 : q4nx::CeilDiv(c.k, kMatvecMaxK);
      for (int64_t part = 0; part < parts; ++part) {
        if (part > 0) error[m] += kUnit * (std::abs(product[m]) + error[m]);
        const int64_t end = std::min(c.k, blocks * (part + 1) / parts * q4nx::kBlockCols);
        for (auto j = static_cast<size_t>(blocks * part / parts * q4nx::kBlockCols);
             j < static_cast<size_t>(end); ++j) {
          product[m] += w[j] * x[j];
          size += std::abs(w[j]) * (std::abs(x[j]) + dx[j]);
          error[m] += std::abs(w[j]) * dx[j];
        }
      }
      // Both also round a prompt's dequantised weights, from sums that may differ in a bit.
      const bool rounded = c.rows > 1 && c.form.kind != WeightKind::kBf16;
      error[m] += (static_cast<double>(c.k) * 0x1p-24 + (rounded ? 0x1p-20 : 0)) * size;
      error[m] += kUnit * (std::abs(product[m]) + error[m]);
    }
    const double both = std::abs(product[0] * product[1]), bias_size = c.bias ? 2 : 0;
    double bound = error[0] + kUnit * bias_size;
    if (c.gated) {
      bound = 1.2 * error[0] * (std::abs(product[1]) + error[1]) + std::abs(product[0]) * error[1] +
              kUnit * both;
    }
    if (c.type == DataType::kBfloat16) {  // the host rounds its result, too
      bound += kUnit * ((c.gated ? both : std::abs(product[0])) + bias_size);
    }
    return bound + (c.type == DataType::kFloat16 ? 0x1p-10 * std::abs(product[0]) + 1e-3 : 1e-6);
  }
};

}  // namespace ort_aie::npu_target
