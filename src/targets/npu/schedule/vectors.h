// The operators between projections, on the device: norms, sums, products, activations. For one
// row, all are made of the sequences `rms_norm` and `glu`; for several, of `add_norm` and `gate`.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>

#include "targets/npu/schedule/batch.h"
#include "targets/npu/schedule/facts.h"

namespace ort_aie::npu_target {

// x (rows, k) = a, or a + skip, and its norm, if it has a weight. This is the input of a
// projection, or stands alone.
struct Row {
  const void* a;
  const void* skip;         // or null
  const void* norm_weight;  // or null
  void* sum;                // or null
  int64_t rows, k;
  DataType type;  // of all tensors
  float epsilon;
  int64_t least_rows = 1;  // for which there is room

  int64_t room() const { return std::max(rows, least_rows); }
};

// Where such rows are on the device, or how they get there. Equal rows are made once.
class RowInput {
 public:
  // vectors: whether the batch's overlay has the sequences for rows of this length.
  // several: that for several rows.
  RowInput(Batch& batch, bool vectors, const Row& row, Design several = kGemm);

  // Whether everything is available, now or on the device.
  bool Ready() const;
  // Rows of whole blocks' columns, with zeros after k, and as many as there is room for. A norm's
  // result goes to `to`, if given.
  npu::BufferView Make(std::optional<npu::BufferView> to = std::nullopt);

 private:
  // Calls prepare(), then the function that it returned as fill(row, bfloat16) for each row.
  using FillRow = std::function<void(int64_t row, uint16_t* y)>;
  npu::BufferView Upload(std::function<FillRow()> prepare);
  npu::BufferView Tensor(const void* tensor);
  npu::BufferView NormWeight();
  npu::BufferView FromHost(bool normalise);
  void StoreSumAfter(std::optional<npu::BufferView> x);

  Batch& batch_;
  const bool vectors_;
  const Design several_;
  const Row row_;
  const int64_t padded_k_, padded_;  // elements per row, and in all
  const BatchTensors::Source a_, skip_;
};

// Whether the overlay for prompts has activations, and norms and sums of rows of k elements.
bool HasRowOperators(const DeviceFacts& facts, int64_t k);

// These add a step. They return false, and change nothing, if the batch has to run first.
bool AppendNorm(const DeviceFacts& facts, Batch& batch, const NormStep& step);
bool AppendElementwise(const DeviceFacts& facts, Batch& batch, const ElementwiseStep& step);
// A cast of a tensor on the device: the same values there.
bool AppendCast(Batch& batch, const CastStep& step);
// A row of a tensor on the device: only its place.
bool AppendSelection(Batch& batch, const GatherStep& step);

}  // namespace ort_aie::npu_target
