// Projections: FusedDQP for one row, dequantisation + GEMM for more; and rows of the embedding.
#include <algorithm>
#include <cstring>

#include "q4nx/bfloat16.h"
#include "q4nx/layout.h"
#include "targets/host/host_target.h"
#include "targets/host/scratch.h"

namespace ort_aie::host {
namespace {

using q4nx::CeilDiv;
using q4nx::ColBlocks;
using q4nx::kBlockBytes;
using q4nx::kBlockCols;
using q4nx::kBlockRows;
using q4nx::kGroup;
using q4nx::PaddedCols;
using q4nx::RowBlocks;

// A task of FusedDQP reads about this much, so that a thread is neither starved by the cost of
// handing out tasks (about 1 µs) nor left without work at the end.
constexpr int64_t kTaskBytes = 128 * 1024;
// Rows of activations per pass over a dequantised panel: their float results (1024 * 32) stay in
// L2.
constexpr int64_t kRowTile = 1024;

// A row of activations as float, padded with zeros to whole blocks.
void LoadRow(const MatMulStep& step, const Kernels& kernels, int64_t row, float* x) {
  ToFloat(kernels, step.type, Advance(step.a, step.type, row * step.k), step.k, x);
  std::fill(x + step.k, x + PaddedCols(step.k), 0.0f);
}

// Adds the bias to `count` results from out-feature n0 on and stores them.
void StoreResults(const MatMulStep& step, const Kernels& kernels, int64_t row, int64_t n0,
                  float* y) {
  const int64_t count = std::min(kBlockRows, step.n - n0);
  if (step.bias != nullptr) {
    float bias[kBlockRows];
    ToFloat(kernels, step.type, Advance(step.bias, step.type, n0), count, bias);
    for (int64_t i = 0; i < count; ++i) y[i] += bias[i];
  }
  FromFloat(kernels, step.type, y, count, Advance(step.y, step.type, row * step.n + n0));
}

void FusedDqp(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const int64_t k_blocks = ColBlocks(step.k), padded = PaddedCols(step.k);
  const int64_t groups = padded / kGroup;
  float* x = Scratch<float>(Purpose::kActivations, padded);
  float* scales = Scratch<float>(Purpose::kActivationScales, groups);
  float* sums = Scratch<float>(Purpose::kActivationSums, groups);
  int32_t* q_sums = Scratch<int32_t>(Purpose::kCodeSums, groups);
  int8_t* q = Scratch<int8_t>(Purpose::kActivationCodes, padded);
  LoadRow(step, kernels, 0, x);
  if (step.numerics == Numerics::kInt8) {
    kernels.quantize_int8(x, groups, q, scales, q_sums);
  } else {
    uint16_t rounded[kBlockCols];
    for (int64_t i = 0; i < padded; i += kBlockCols) {
      kernels.float_to_bfloat16(x + i, kBlockCols, rounded);
      kernels.bfloat16_to_float(rounded, kBlockCols, x + i);
    }
    kernels.group_sums(x, groups, sums);
  }

  const int64_t row_blocks = RowBlocks(step.n), row_bytes = k_blocks * kBlockBytes;
  const int64_t per_task = std::max<int64_t>(1, kTaskBytes / row_bytes);
  threads.ParallelFor(CeilDiv(row_blocks, per_task), [&](int64_t task) noexcept {
    const int64_t end = std::min(row_blocks, (task + 1) * per_task);
    for (int64_t block = task * per_task; block < end; ++block) {
      const uint8_t* weights = step.weights + block * row_bytes;
      float y[kBlockRows];
      if (step.numerics == Numerics::kInt8) {
        kernels.fused_dqp_int8(weights, k_blocks, q, scales, q_sums, step.symmetric, y);
      } else {
        kernels.fused_dqp_bf16(weights, k_blocks, x, sums, step.symmetric, y);
      }
      StoreResults(step, kernels, 0, block * kBlockRows, y);
    }
  });
}

void GemmBf16(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const int64_t k_blocks = ColBlocks(step.k), padded = PaddedCols(step.k);
  uint16_t* a = Scratch<uint16_t>(Purpose::kActivations, step.rows * padded);
  threads.ParallelFor(step.rows, [&](int64_t row) noexcept {
    float* x = Scratch<float>(Purpose::kRow, padded);
    LoadRow(step, kernels, row, x);
    kernels.float_to_bfloat16(x, padded, a + row * padded);
  });
  threads.ParallelFor(RowBlocks(step.n), [&](int64_t block) noexcept {
    uint16_t* panel = Scratch<uint16_t>(Purpose::kPanel, padded * kBlockRows);
    const uint8_t* weights = step.weights + block * k_blocks * kBlockBytes;
    for (int64_t b = 0; b < k_blocks; ++b) {
      kernels.dequantize_block(weights + b * kBlockBytes, panel + b * kBlockCols * kBlockRows);
    }
    float* y = Scratch<float>(Purpose::kTile, std::min(kRowTile, step.rows) * kBlockRows);
    for (int64_t first = 0; first < step.rows; first += kRowTile) {
      const int64_t rows = std::min(kRowTile, step.rows - first);
      kernels.gemm_bf16(a + first * padded, padded, rows, panel, padded / 2, y, kBlockRows);
      for (int64_t r = 0; r < rows; ++r) {
        StoreResults(step, kernels, first + r, block * kBlockRows, y + r * kBlockRows);
      }
    }
  });
}

void GemmInt8(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const int64_t k_blocks = ColBlocks(step.k), padded = PaddedCols(step.k);
  const int64_t groups = padded / kGroup;
  int8_t* a = Scratch<int8_t>(Purpose::kActivations, step.rows * padded);
  float* a_scales = Scratch<float>(Purpose::kActivationScales, step.rows * groups);
  int32_t* q_sums = Scratch<int32_t>(Purpose::kCodeSums, step.rows * groups);
  threads.ParallelFor(step.rows, [&](int64_t row) noexcept {
    float* x = Scratch<float>(Purpose::kRow, padded);
    LoadRow(step, kernels, row, x);
    kernels.quantize_int8(x, groups, a + row * padded, a_scales + row * groups,
                          q_sums + row * groups);
  });
  threads.ParallelFor(RowBlocks(step.n), [&](int64_t block) noexcept {
    uint8_t* codes = Scratch<uint8_t>(Purpose::kPanel, padded * kBlockRows);
    float* scales = Scratch<float>(Purpose::kPanelScales, 2 * groups * kBlockRows);
    float* mins = scales + groups * kBlockRows;
    const uint8_t* weights = step.weights + block * k_blocks * kBlockBytes;
    for (int64_t b = 0; b < k_blocks; ++b) {
      kernels.unpack_block(weights + b * kBlockBytes, codes + b * kBlockCols * kBlockRows,
                           scales + b * kBlockCols, mins + b * kBlockCols);
    }
    float* y = Scratch<float>(Purpose::kTile, std::min(kRowTile, step.rows) * kBlockRows);
    for (int64_t first = 0; first < step.rows; first += kRowTile) {
      const int64_t rows = std::min(kRowTile, step.rows - first);
      kernels.gemm_int8(a + first * padded, a_scales + first * groups, q_sums + first * groups,
                        padded, rows, codes, scales, step.symmetric ? nullptr : mins, groups, y,
                        kBlockRows);
      for (int64_t r = 0; r < rows; ++r) {
        StoreResults(step, kernels, first + r, block * kBlockRows, y + r * kBlockRows);
      }
    }
  });
}

}  // namespace

void RunMatMul(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  if (step.rows == 1) {
    FusedDqp(step, kernels, threads);
  } else if (step.numerics == Numerics::kInt8) {
    GemmInt8(step, kernels, threads);
  } else {
    GemmBf16(step, kernels, threads);
  }
}

void RunGather(const GatherStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const int64_t k_blocks = ColBlocks(step.k);
  threads.ParallelFor(step.count, [&](int64_t i) noexcept {
    int64_t row = step.index_type == DataType::kInt64
                      ? static_cast<const int64_t*>(step.indices)[i]
                      : static_cast<const int32_t*>(step.indices)[i];
    if (row < 0) row += step.n;
    float* x = Scratch<float>(Purpose::kRow, PaddedCols(step.k));
    if (row < 0 || row >= step.n) {
      std::fill(x, x + step.k, 0.0f);
    } else {
      const int64_t n = row % kBlockRows;
      const uint8_t* block = step.weights + (row / kBlockRows) * k_blocks * kBlockBytes;
      for (int64_t k = 0; k < step.k; ++k) {
        const uint8_t* b = block + (k / kBlockCols) * kBlockBytes;
        const int64_t col = k % kBlockCols;
        const int64_t group = 2 * ((col / kGroup) * kBlockRows + n);
        uint16_t scale, min;
        std::memcpy(&scale, b + group, 2);
        std::memcpy(&min, b + q4nx::kMinsOffset + group, 2);
        const uint8_t byte =
            b[q4nx::kCodesOffset + (n / 16) * q4nx::kHalfBytes + col * 8 + (n % 16) / 2];
        const int code = (n % 2 != 0) ? byte >> 4 : byte & 15;
        x[k] = Bfloat16ToFloat(scale) * static_cast<float>(code) + Bfloat16ToFloat(min);
      }
    }
    FromFloat(kernels, step.type, x, step.k, Advance(step.y, step.type, i * step.k));
  });
}

}  // namespace ort_aie::host
