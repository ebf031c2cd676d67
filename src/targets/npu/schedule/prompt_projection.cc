#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "q4nx/layout.h"
#include "targets/host/projection_rows.h"
#include "targets/host/work.h"
#include "targets/npu/schedule/designs.h"
#include "targets/npu/schedule/projection.h"
#include "targets/npu/schedule/prompt_weights.h"
#include "targets/npu/schedule/vectors.h"
#include "targets/trace.h"

namespace ort_aie::npu_target {
namespace {

using host::IsGated;
using q4nx::CeilDiv;

constexpr int64_t kRowMultiple = 512;  // rows of C that eight columns compute in a pass

// The parts into which a step is divided.
struct Division {
  int64_t bands, band_blocks;  // of out-features, in blocks of 32
  int64_t rows;

  int64_t band_n() const { return band_blocks * q4nx::kBlockRows; }
};

Division Divide(const DeviceFacts& facts, const MatMulStep& step) {
  const int64_t k = q4nx::PaddedCols(step.k), blocks = q4nx::RowBlocks(DeviceRows(step.n));
  Division division{1, blocks, 0};
  if (step.form.kind != WeightKind::kBf16) {  // weights that have to be dequantised
    const int64_t most =
        std::max(facts.weight_bytes / facts.prompts.WeightBytes(q4nx::kBlockRows, k),
                 2 * kLeastN / q4nx::kBlockRows);
    division.bands = CeilDiv(blocks, most);
    division.band_blocks = CeilDiv(blocks, division.bands);
  }
  const int64_t products = IsGated(step) ? 2 : 1;
  int64_t most = facts.row_bytes / (2 * std::max(k, products * division.band_n()));
  if (step.prompt_chunk > 0) most = std::min(most, step.prompt_chunk);
  division.rows = std::min(step.rows, std::max(kRowMultiple, most / kRowMultiple * kRowMultiple));
  return division;
}

// Whether y on the device has the host's layout, so that the next step can read it there.
bool StaysThere(const DeviceFacts& facts, const MatMulStep& step) {
  if (step.n != DeviceRows(step.n) || step.bias != nullptr || !FinishesThere(step)) return false;
  return !IsGated(step) || (step.n >= kGluLeast && HasRowOperators(facts, kGluLeast));
}

// Whether one buffer holds what a step needs at once: the sum and its norm; the products and their
// results; and the norm's weight.
bool HasRoomAlone(const MatMulStep& step) {
  const int64_t row = 2 * q4nx::PaddedCols(step.k) + (IsGated(step) ? 3 : 1) * step.n;
  return 2 * (step.rows + kGemmLeastRows) * row <= static_cast<int64_t>(kMaxBufferBytes);
}

int64_t RoomForRows(int64_t rows) { return std::max(rows, kGemmLeastRows); }

// Computes some out-features from `n0` on, with the work after the products.
void Multiply(const DeviceFacts& facts, Batch& batch, RowInput& input, const MatMulStep& step,
              const WeightPlaces& weights, int64_t n0, int64_t n) {
  const npu::BufferView x = input.Make();
  const auto gemm = [&](const DeviceMemory& b, npu::BufferView c) {
    const npu::BufferView blocks = batch.memory.View(b.buffer, b.offset);
    const std::map<std::string, int64_t> shape = {
        {"M", step.rows}, {"K", q4nx::PaddedCols(step.k)}, {"N", n}};
    if (IsShort(facts, step)) {
      batch.Invoke(kShortGemm, {"project", shape, {{"a", x}, {"w", blocks}, {"c", c}}});
    } else {
      batch.Invoke(facts.prompts.gemm, {"gemm", shape, {{"a", x}, {"b", blocks}, {"c", c}}});
    }
  };
  const int64_t elements = RoomForRows(step.rows) * n;
  const bool gated = IsGated(step);
  if (n == step.n && StaysThere(facts, step)) {
    const npu::BufferView y = batch.OutputRows(step.y, step.rows * n, step.type, elements);
    if (!gated) return gemm(weights.weights, y);
    const npu::BufferView gate = batch.memory.Scratch(elements),
                          up = batch.memory.Scratch(elements);
    gemm(weights.weights, gate);
    gemm(weights.up, up);
    return batch.Invoke(
        facts.prompts.gemm,
        {"gate",
         {{"M", step.rows}, {"N", n}, {"kind", step.activation == Activation::kSilu ? 0 : 1}},
         {{"gate", gate}, {"up", up}, {"y", y}}});
  }
  const npu::BufferView y = batch.memory.Result(elements),
                        up = gated ? batch.memory.Result(elements) : y;
  gemm(weights.weights, y);
  if (gated) gemm(weights.up, up);
  batch.Then([&threads = batch.threads(), step, y, up, n0, n](const Batch::Results& results) {
    const TraceSpan traced("host", "results");
    const uint16_t *const product = results[y], *const other = results[up];
    threads.ParallelFor(step.rows, host::PassNs(n), [&](int64_t row) {
      StoreProducts(host::SelectedKernels(), step, row, n0, std::min(n, step.n - n0),
                    product + row * n, other + row * n);
    });
  });
  batch.WritesLater(step.y, step.rows * step.n, step.type);
}

RowInput InputOf(const DeviceFacts& facts, Batch& batch, const MatMulStep& step) {
  return {batch,
          HasRowOperators(facts, step.k),
          {step.a, step.skip, step.norm_weight, step.sum, step.rows, step.k, step.type,
           step.norm_epsilon, kGemmLeastRows},
          facts.prompts.gemm};
}

// Some rows of a step.
MatMulStep RowsOf(const MatMulStep& step, int64_t first, int64_t count) {
  MatMulStep rows = step;
  const auto advance = [&](auto*& tensor, int64_t width) {
    if (tensor != nullptr) tensor = Advance(tensor, step.type, first * width);
  };
  rows.rows = count;
  advance(rows.a, step.k);
  advance(rows.skip, step.k);
  advance(rows.sum, step.k);
  advance(rows.y, step.n);
  return rows;
}

}  // namespace

bool IsLarge(const DeviceFacts& facts, const Arena& temporaries, const MatMulStep& step) {
  if (IsShort(facts, step)) return false;
  const Division division = Divide(facts, step);
  if (division.bands > 1 || !PromptWeights::HasRoom(facts, step)) return true;
  // A row that stays on the device is not wider there than on the host.
  const bool stays =
      StaysThere(facts, step) && HasRoomAlone(step) &&
      temporaries.Holds(step.y, static_cast<size_t>(step.rows * step.n) * SizeOf(step.type));
  return division.rows < step.rows && !stays;
}

bool AppendPromptProjection(Scheduling& scheduling, Batch& batch, std::span<const Step> steps) {
  const DeviceFacts& facts = scheduling.facts;
  const auto& step = std::get<MatMulStep>(steps.front());
  RowInput input = InputOf(facts, batch, step);
  const size_t bias_bytes = static_cast<size_t>(step.n) * SizeOf(step.type);
  if (!input.Ready() || !batch.tensors.OnHost(step.bias, bias_bytes) ||
      !batch.tensors.OnHost(step.up_bias, bias_bytes)) {
    return false;
  }
  const bool dequantised = step.form.kind != WeightKind::kBf16 && !IsShort(facts, step);
  const WeightPlaces weights =
      dequantised ? scheduling.prompt.Get(batch, steps) : scheduling.contents.Weights(step);
  Multiply(facts, batch, input, step, weights, 0, DeviceRows(step.n));
  return true;
}

void ProjectLarge(Scheduling& scheduling, const MatMulStep& step, Stage& stage) {
  const DeviceFacts& facts = scheduling.facts;
  const Division division = Divide(facts, step);
  const bool dequantised = step.form.kind != WeightKind::kBf16;
  const int64_t k = q4nx::PaddedCols(step.k), n = division.band_n();
  const int64_t blocks = q4nx::RowBlocks(DeviceRows(step.n));
  const WeightPlaces places = scheduling.contents.Weights(step);
  WeightPlaces b = places;
  if (dequantised) {
    scheduling.prompt.Forget();
    auto scratch = std::make_shared<ScratchBuffers>(scheduling.contents.TakeScratch(
        static_cast<size_t>(facts.prompts.WeightBytes(n, k)), IsGated(step)));
    b = {{scratch->buffers[0]}, {scratch->buffers[1]}};
    stage.keep = std::move(scratch);
  }
  for (int64_t band = 0; band < division.bands; ++band) {
    // The last band ends with the matrix: some of its rows are also in the band before it.
    const int64_t first_block =
        std::min(band * division.band_blocks, blocks - division.band_blocks);
    const int64_t n0 = first_block * q4nx::kBlockRows;
    for (int64_t first = 0; first < step.rows; first += division.rows) {
      const MatMulStep rows = RowsOf(step, first, std::min(division.rows, step.rows - first));
      Batch& batch = stage.Add(scheduling.threads);
      if (dequantised && first == 0) {
        const int64_t skipped = q4nx::BytesOfBlocks(n0, k, scheduling.contents.form());
        for (const auto& [from, to] : {std::pair{places.weights, b.weights}, {places.up, b.up}}) {
          if (to.buffer == nullptr) continue;
          batch.Invoke(facts.prompts.dequant,
                       {"dequant",
                        {{"blocks", division.band_blocks * q4nx::ColBlocks(k)}},
                        {{"w", batch.memory.View(from.buffer, from.offset + skipped)},
                         {"b", batch.memory.View(to.buffer, to.offset)}}});
        }
      }
      RowInput input = InputOf(facts, batch, rows);
      Multiply(facts, batch, input, rows, b, n0, n);
    }
  }
}

}  // namespace ort_aie::npu_target
