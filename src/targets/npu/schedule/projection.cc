#include "targets/npu/schedule/projection.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "q4nx/layout.h"
#include "targets/host/projection_rows.h"
#include "targets/npu/conversions.h"
#include "targets/npu/schedule/designs.h"
#include "targets/npu/schedule/vectors.h"

namespace ort_aie::npu_target {
namespace {

using q4nx::CeilDiv;

using host::IsGated;

}  // namespace

bool FinishesThere(const MatMulStep& step) {
  if (!IsGated(step)) return step.activation == Activation::kNone;
  if (step.bias != nullptr || step.up_bias != nullptr) return false;
  return step.activation == Activation::kSilu || step.activation == Activation::kGeluTanh;
}

void StoreProducts(const host::Kernels& kernels, const MatMulStep& step, int64_t row, int64_t n0,
                   int64_t count, const uint16_t* product, const uint16_t* up) {
  if (!IsGated(step) && step.bias == nullptr && FinishesThere(step)) {
    return FromBfloat16(kernels, product, count, step.type,
                        Advance(step.y, step.type, row * step.n + n0));
  }
  float* y = host::Scratch<float>(host::Purpose::kTile, 2 * count);
  kernels.bfloat16_to_float(product, count, y);
  if (IsGated(step)) kernels.bfloat16_to_float(up, count, y + count);
  host::StoreResults(step, kernels, row, n0, count, y, y + count);
}

bool AppendProjection(Scheduling& scheduling, Batch& batch, Design design, const MatMulStep& step) {
  const bool vectors = design == kDecode, gated = IsGated(step);
  // The host computes norms of rows that are longer than the device's.
  RowInput input(batch, vectors && step.k <= kVectorMaxK,
                 {step.a, step.skip, step.norm_weight, step.sum, step.rows, step.k, step.type,
                  step.norm_epsilon});
  const size_t bias_bytes = static_cast<size_t>(step.n) * SizeOf(step.type);
  if (!input.Ready() || !batch.tensors.OnHost(step.bias, bias_bytes) ||
      !batch.tensors.OnHost(step.up_bias, bias_bytes)) {
    return false;
  }
  const WeightPlaces places = scheduling.contents.Weights(step);
  const int64_t k = q4nx::PaddedCols(step.k), n = DeviceRows(step.n);
  const npu::BufferView x = input.Make();

  // The host adds a bias that is too large for the cores, or that something follows.
  const bool finishes = FinishesThere(step);
  const bool bias_there = step.bias != nullptr && !gated && finishes && step.n <= kMatvecMaxBias;
  const auto matvec = [&](const DeviceMemory& weights, npu::BufferView y) {
    std::optional<npu::BufferView> added;
    if (bias_there) {
      added = batch.Input(n, [&step](uint16_t* to) {
        ToBfloat16(host::SelectedKernels(), step.type, step.bias, step.n, to);
      });
    }
    // A row that is too long for the cores is divided into parts. Each part takes the sum of the
    // parts before as its bias.
    const int64_t blocks = q4nx::ColBlocks(k), parts = CeilDiv(k, kMatvecMaxK);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = blocks * part / parts, count = blocks * (part + 1) / parts - first;
      const npu::BufferView to = part + 1 < parts ? batch.memory.Scratch(n) : y;
      const int64_t offset = weights.offset + first * q4nx::BlockBytes(scheduling.contents.form());
      npu::Invocation invocation{
          "matvec",
          {{"N", n}, {"K", count * q4nx::kBlockCols}, {"bias", added ? 1 : 0}},
          {{"x", {x.argument, x.offset + 2 * first * q4nx::kBlockCols}},
           {"w", batch.memory.View(weights.buffer, offset)},
           {"bias", added.value_or(x)},  // has no bytes if there is no bias
           {"y", to}}};
      if (parts > 1) {
        invocation.sequence = "matvec_part";
        invocation.parameters["row_K"] = k;
      }
      batch.Invoke(design, std::move(invocation));
      added = to;
    }
  };
  if (gated && finishes && vectors) {
    // Rows without weights are zeros, and `glu` makes zeros of them.
    const int64_t width = std::max(n, kGluLeast);
    const npu::BufferView both = width == n ? batch.memory.Scratch(2 * n) : batch.Input(2 * width);
    matvec(places.weights, both);
    matvec(places.up, {both.argument, both.offset + 2 * width});
    batch.Invoke(design,
                 {"glu",
                  {{"n", width}, {"kind", step.activation == Activation::kSilu ? 0 : 1}},
                  {{"gate_up", both}, {"y", batch.Output(step.y, step.n, step.type, width)}}});
    return true;
  }
  if (!gated && finishes && (step.bias == nullptr || bias_there)) {
    matvec(places.weights, batch.Output(step.y, step.n, step.type, n));
    return true;
  }
  const npu::BufferView y = batch.memory.Result(n), up = gated ? batch.memory.Result(n) : y;
  matvec(places.weights, y);
  if (gated) matvec(places.up, up);
  batch.Then([&step, y, up](const Batch::Results& results) {
    StoreProducts(host::SelectedKernels(), step, 0, 0, step.n, results[y], results[up]);
  });
  batch.WritesLater(step.y, step.n, step.type);
  return true;
}

}  // namespace ort_aie::npu_target
