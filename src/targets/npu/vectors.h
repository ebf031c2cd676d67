// What stands between projections, on the device: norms, sums, products, activations, all by the
// sequences `rms_norm` and `glu`.
#pragma once

#include <optional>

#include "targets/npu/batch.h"

namespace ort_aie::npu_target {

// x (k) = a, or a + skip, and its norm, if it has a weight: the row that a projection takes, or
// that stands alone.
struct Row {
  const void* a;
  const void* skip;         // or null
  const void* norm_weight;  // or null
  void* sum;                // or null
  int64_t k;
  DataType type;  // of all of them
  float epsilon;
};

// Where such a row lies on the device, or how it gets there. Rows that are the same are made once.
class RowInput {
 public:
  // vectors: whether the batch's overlay has the sequences.
  RowInput(Engine& engine, Batch& batch, bool vectors, const Row& row);

  // Whether everything is where it can be had, now or on the device.
  bool Ready() const;
  // (whole blocks' columns), zeros behind k. A norm's result goes to `to`, if that is given.
  npu::BufferView Make(std::optional<npu::BufferView> to = std::nullopt);

 private:
  npu::BufferView MakeSum(bool residual);
  npu::BufferView Tensor(const void* tensor);
  npu::BufferView FromHost(bool normalise);
  void StoreSumAfter(std::optional<npu::BufferView> x);

  Engine& engine_;
  Batch& batch_;
  const bool vectors_;
  const Row row_;
  const int64_t padded_;
  const Batch::Source a_, skip_;
};

// These add a step of one row. False, and no change, if the batch has to run first.
bool AppendNorm(Engine& engine, Batch& batch, const NormStep& step);
bool AppendElementwise(Engine& engine, Batch& batch, const ElementwiseStep& step);
// Of what the device has: the same values there.
bool AppendCast(Batch& batch, const CastStep& step);

}  // namespace ort_aie::npu_target
