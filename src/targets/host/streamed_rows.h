// Products of a few rows with weights as they are read from memory: FusedDQP, or lookups for
// weights of two bits. Projections and experts are made of these.
#pragma once

#include <algorithm>
#include <cstdint>

#include "q4nx/layout.h"
#include "targets/host/host_target.h"
#include "targets/host/lookup_tables.h"
#include "targets/host/projection_rows.h"
#include "targets/host/scratch.h"
#include "targets/host/weight_layout.h"

namespace ort_aie::host {

// Bytes of the blocks of 32 out-features.
constexpr int64_t RowBytes(const MatMulStep& step) {
  return q4nx::ColBlocks(step.k, step.form) * q4nx::BlockBytes(step.form);
}

// The fewest rows of blocks, of so many bytes each, that a thread takes at a time: about 64 KB, so
// that it neither loses time to the cost of taking them (about 1 us) nor is left without work at
// the end. Many rows of activations are bound by computing: fewer bytes take the same time.
constexpr int64_t LeastRun(int64_t row_bytes, int64_t rows) {
  constexpr int64_t kBytes = 64 * 1024, kRows = 8;
  return std::max<int64_t>(1, kBytes / (row_bytes * q4nx::CeilDiv(rows, kRows)));
}

// A row of x as float, padded with zeros to whole blocks: in `buffer`, or in place if it needs no
// change.
const float* LoadPadded(const MatMulStep& step, const Kernels& kernels, const float* norm_weight,
                        int64_t row, float* buffer);

// `rows` rows of activations, as the step's numerics and form of weights want them, in memory of
// the thread that makes the object. There is one such object at a time.
class StreamedRows {
 public:
  StreamedRows(const MatMulStep& step, int64_t rows, const Kernels& kernels);

  // x is padded with zeros to whole blocks. On any thread; one row alone on the one that made this.
  void Prepare(int64_t row, const float* x);
  // y (count, 32) = rows [first, first + count) . a row of blocks, on any thread. The result of a
  // row does not depend on the others. Kernels that give the same bits may prepare and multiply.
  void Multiply(const Kernels& kernels, const uint8_t* blocks, int64_t first, int64_t count,
                float* y, int64_t ldy) const;

 private:
  const Kernels& kernels_;
  const WeightForm form_;
  const bool int8_, lookup_, alone_;
  const BlockLayout layout_;
  const int64_t k_blocks_, padded_;
  const int64_t groups_;  // of 32 in-features, which have a scale, and a sum if those of weights do
  const int64_t sum_groups_;
  const int64_t table_bytes_;
  float *scales_ = nullptr, *sums_ = nullptr, *rounded_ = nullptr;
  int32_t* q_sums_ = nullptr;
  int8_t* codes_ = nullptr;
  uint8_t* tables_ = nullptr;
  LookupTables looked_up_ = {};  // those of all rows
};

// The results of rows of blocks [first, first + count) for all rows of the step, stored.
// multiply(blocks, y, ldy) computes 32 out-features of each row from a row of blocks.
template <typename Multiply>
void StreamBand(const MatMulStep& step, const Kernels& kernels, int64_t first, int64_t count,
                const Multiply& multiply) {
  // Results stay in L1 until they are stored.
  constexpr int64_t kResults = 4 * 1024;
  const int64_t most = std::max<int64_t>(1, kResults / (step.rows * q4nx::kBlockRows));
  const int64_t row_bytes = RowBytes(step);
  for (const int64_t end = first + count; first < end; first += most) {
    const int64_t part = std::min(most, end - first), ldy = part * q4nx::kBlockRows;
    // One run of blocks after the other: the CPU fetches ahead within a run.
    const auto multiply_run = [&](const uint8_t* weights, float* y) {
      for (int64_t i = 0; i < part; ++i) {
        multiply(weights + (first + i) * row_bytes, y + i * q4nx::kBlockRows, ldy);
      }
    };
    float* y = Scratch<float>(Purpose::kTile, 2 * step.rows * ldy);
    float* up = y + step.rows * ldy;
    multiply_run(step.weights, y);
    if (IsGated(step)) multiply_run(step.up_weights, up);
    const int64_t n0 = first * q4nx::kBlockRows;
    for (int64_t row = 0; row < step.rows; ++row) {
      StoreResults(step, kernels, row, n0, std::min(ldy, step.n - n0), y + row * ldy,
                   up + row * ldy);
    }
  }
}

}  // namespace ort_aie::host
