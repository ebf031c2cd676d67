// What stands between projections, on the device: norms, sums, products, activations. Of a row all
// are made of the sequences `rms_norm` and `glu`, of several of `add_norm` and `gate`.
#pragma once

#include <algorithm>
#include <optional>

#include "targets/npu/batch.h"

namespace ort_aie::npu_target {

// x (rows, k) = a, or a + skip, and its norm, if it has a weight: what a projection takes, or what
// stands alone.
struct Row {
  const void* a;
  const void* skip;         // or null
  const void* norm_weight;  // or null
  void* sum;                // or null
  int64_t rows, k;
  DataType type;  // of all of them
  float epsilon;
  int64_t least_rows = 1;  // that there is room for

  int64_t room() const { return std::max(rows, least_rows); }
};

// Where such rows lie on the device, or how they get there. Those that are the same are made once.
class RowInput {
 public:
  // vectors: whether the batch's overlay has the sequences, for so many elements a row.
  RowInput(Engine& engine, Batch& batch, bool vectors, const Row& row);

  // Whether everything is where it can be had, now or on the device.
  bool Ready() const;
  // (whole blocks' columns), zeros behind k, and so many rows as there is room for. A norm's result
  // goes to `to`, if that is given.
  npu::BufferView Make(std::optional<npu::BufferView> to = std::nullopt);

 private:
  // fill(row, bfloat16) of each.
  template <typename F>
  npu::BufferView Upload(const F& fill);
  npu::BufferView Tensor(const void* tensor);
  npu::BufferView NormWeight();
  npu::BufferView FromHost(bool normalise);
  void StoreSumAfter(std::optional<npu::BufferView> x);

  Engine& engine_;
  Batch& batch_;
  const bool vectors_;
  const Row row_;
  const int64_t padded_k_, padded_;  // elements of a row, and of all
  const Batch::Source a_, skip_;
};

// Whether the overlay of prompts has norms and sums of rows of k elements, and activations.
bool HasRowOperators(const Engine& engine, int64_t k);

// These add a step. False, and no change, if the batch has to run first.
bool AppendNorm(Engine& engine, Batch& batch, const NormStep& step);
bool AppendElementwise(Engine& engine, Batch& batch, const ElementwiseStep& step);
// Of what the device has: the same values there.
bool AppendCast(Batch& batch, const CastStep& step);
// A row of what the device has: where it is.
bool AppendSelection(Batch& batch, const GatherStep& step);

}  // namespace ort_aie::npu_target
