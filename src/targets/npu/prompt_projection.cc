#include <algorithm>
#include <map>
#include <span>
#include <string>

#include "base/error.h"
#include "q4nx/layout.h"
#include "targets/host/projection_rows.h"
#include "targets/host/work.h"
#include "targets/npu/designs.h"
#include "targets/npu/projection.h"
#include "targets/npu/prompt_weights.h"
#include "targets/npu/vectors.h"
#include "targets/npu/weights.h"

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

Division Divide(const Engine& engine, const MatMulStep& step) {
  const int64_t k = q4nx::PaddedCols(step.k), blocks = q4nx::RowBlocks(DeviceRows(step.n));
  Division division{1, blocks, 0};
  if (step.form.kind != WeightKind::kBf16) {  // weights that have to be dequantised
    const int64_t most = std::max(engine.options().weight_bytes / (2 * k * q4nx::kBlockRows),
                                  2 * kLeastN / q4nx::kBlockRows);
    division.bands = CeilDiv(blocks, most);
    division.band_blocks = CeilDiv(blocks, division.bands);
  }
  const int64_t products = IsGated(step) ? 2 : 1;
  int64_t most = engine.options().row_bytes / (2 * std::max(k, products * division.band_n()));
  if (step.prompt_chunk > 0) most = std::min(most, step.prompt_chunk);
  division.rows = std::min(step.rows, std::max(kRowMultiple, most / kRowMultiple * kRowMultiple));
  return division;
}

// Whether y on the device has the host's layout, so that the next step can read it there.
bool StaysThere(const Engine& engine, const MatMulStep& step) {
  if (step.n != DeviceRows(step.n) || step.bias != nullptr || !FinishesThere(step)) return false;
  return !IsGated(step) || (step.n >= kGluLeast && HasRowOperators(engine, kGluLeast));
}

// Whether one buffer holds what a step needs at once: the sum and its norm; the products and their
// results; and the norm's weight.
bool HasRoomAlone(const MatMulStep& step) {
  const int64_t row = 2 * q4nx::PaddedCols(step.k) + (IsGated(step) ? 3 : 1) * step.n;
  return 2 * (step.rows + kGemmLeastRows) * row <= static_cast<int64_t>(kMaxBufferBytes);
}

int64_t RoomForRows(int64_t rows) { return std::max(rows, kGemmLeastRows); }

// Computes some out-features from `n0` on, with the work after the products.
void Multiply(Engine& engine, Batch& batch, RowInput& input, const MatMulStep& step,
              const PromptWeights::Place& weights, int64_t n0, int64_t n) {
  const npu::BufferView x = input.Make();
  const auto gemm = [&](const DeviceMemory& b, npu::BufferView c) {
    const npu::BufferView blocks = batch.View(b.buffer, b.offset);
    const std::map<std::string, int64_t> shape = {
        {"M", step.rows}, {"K", q4nx::PaddedCols(step.k)}, {"N", n}};
    if (IsShort(engine, step)) {
      batch.Invoke(kShortGemm, {"project", shape, {{"a", x}, {"w", blocks}, {"c", c}}});
    } else {
      batch.Invoke(kGemm, {"gemm", shape, {{"a", x}, {"b", blocks}, {"c", c}}});
    }
  };
  const int64_t elements = RoomForRows(step.rows) * n;
  const bool gated = IsGated(step);
  if (n == step.n && StaysThere(engine, step)) {
    const npu::BufferView y = batch.OutputRows(step.y, step.rows * n, step.type, elements);
    if (!gated) return gemm(weights.weights, y);
    const npu::BufferView gate = batch.Scratch(elements), up = batch.Scratch(elements);
    gemm(weights.weights, gate);
    gemm(weights.up, up);
    return batch.Invoke(kGemm, {"gate",
                                {{"M", step.rows},
                                 {"N", n},
                                 {"kind", step.activation == Activation::kSilu ? 0 : 1},
                                 {"gate_stride", n},
                                 {"up_stride", n}},
                                {{"gate", gate}, {"up", up}, {"y", y}}});
  }
  const npu::BufferView y = batch.Result(elements), up = gated ? batch.Result(elements) : y;
  gemm(weights.weights, y);
  if (gated) gemm(weights.up, up);
  batch.Then(
      [&engine, &threads = batch.threads(), step, y, up, n0, n](const Batch::Results& results) {
        const TraceSpan traced("host", "results");
        const uint16_t *const product = results[y], *const other = results[up];
        threads.ParallelFor(step.rows, host::PassNs(n), [&](int64_t row) {
          StoreProducts(engine.kernels(), step, row, n0, std::min(n, step.n - n0),
                        product + row * n, other + row * n);
        });
      });
  batch.Writes(step.y, step.rows * step.n, step.type, std::nullopt);
}

RowInput InputOf(Engine& engine, Batch& batch, const MatMulStep& step) {
  return {engine,
          batch,
          HasRowOperators(engine, step.k),
          {step.a, step.skip, step.norm_weight, step.sum, step.rows, step.k, step.type,
           step.norm_epsilon, kGemmLeastRows}};
}

// Some rows of a step.
MatMulStep RowsOf(const MatMulStep& step, int64_t first, int64_t count) {
  MatMulStep rows = step;
  const auto advance = [&](auto*& tensor, int64_t width) {
    if (tensor != nullptr) tensor = host::Advance(tensor, step.type, first * width);
  };
  rows.rows = count;
  advance(rows.a, step.k);
  advance(rows.skip, step.k);
  advance(rows.sum, step.k);
  advance(rows.y, step.n);
  return rows;
}

}  // namespace

bool IsLarge(const Engine& engine, const Arena& temporaries, const MatMulStep& step) {
  if (IsShort(engine, step)) return false;
  const Division division = Divide(engine, step);
  if (division.bands > 1 || !PromptWeights::HasRoom(engine, step)) return true;
  // A row that stays on the device is not wider there than on the host.
  const bool stays =
      StaysThere(engine, step) && HasRoomAlone(step) &&
      temporaries.Holds(step.y, static_cast<size_t>(step.rows * step.n) * SizeOf(step.type));
  return division.rows < step.rows && !stays;
}

bool AppendPromptProjection(Engine& engine, const PlanMemory* memory, PromptWeights& prompt,
                            Batch& batch, std::span<const Step> steps) {
  const auto& step = std::get<MatMulStep>(steps.front());
  RowInput input = InputOf(engine, batch, step);
  const size_t bias_bytes = static_cast<size_t>(step.n) * SizeOf(step.type);
  if (!input.Ready() || !batch.OnHost(step.bias, bias_bytes) ||
      !batch.OnHost(step.up_bias, bias_bytes)) {
    return false;
  }
  PromptWeights::Place weights;
  if (step.form.kind != WeightKind::kBf16 && !IsShort(engine, step)) {
    weights = prompt.Get(memory, batch, steps);
  } else {
    const PinnedWeights pinned = WeightsOf(engine, memory, step);
    weights = {pinned.weights, pinned.up};
  }
  Multiply(engine, batch, input, step, weights, 0, DeviceRows(step.n));
  return true;
}

void ProjectLarge(Engine& engine, const PlanMemory* memory, PromptWeights& prompt,
                  const MatMulStep& step, const ThreadPool& threads) {
  const Division division = Divide(engine, step);
  const bool dequantised = step.form.kind != WeightKind::kBf16;
  const int64_t k = q4nx::PaddedCols(step.k), n = division.band_n();
  const int64_t blocks = q4nx::RowBlocks(DeviceRows(step.n));
  const PinnedWeights pinned = WeightsOf(engine, memory, step);
  PromptWeights::Place b{pinned.weights, pinned.up};
  Engine::Scratch scratch;
  if (dequantised) {
    prompt.Forget();
    scratch = engine.TakeScratch(static_cast<size_t>(2 * n * k), IsGated(step));
    b = {{scratch.buffers[0]}, {scratch.buffers[1]}};
  }
  for (int64_t band = 0; band < division.bands; ++band) {
    // The last band ends with the matrix: some of its rows are also in the band before it.
    const int64_t first_block =
        std::min(band * division.band_blocks, blocks - division.band_blocks);
    const int64_t n0 = first_block * q4nx::kBlockRows;
    for (int64_t first = 0; first < step.rows; first += division.rows) {
      const MatMulStep rows = RowsOf(step, first, std::min(division.rows, step.rows - first));
      Batch batch(engine, threads, DeviceForm(memory));
      if (dequantised && first == 0) {
        const int64_t skipped = q4nx::BytesOfBlocks(n0, k, DeviceForm(memory));
        for (const auto& [from, to] : {std::pair{pinned.weights, b.weights}, {pinned.up, b.up}}) {
          if (to.buffer == nullptr) continue;
          batch.Invoke(kDequant, {"dequant",
                                  {{"blocks", division.band_blocks * q4nx::ColBlocks(k)}},
                                  {{"w", batch.View(from.buffer, from.offset + skipped)},
                                   {"b", batch.View(to.buffer, to.offset)}}});
        }
      }
      RowInput input = InputOf(engine, batch, rows);
      Multiply(engine, batch, input, rows, b, n0, n);
      batch.Run([](const void*, size_t) { return true; });
    }
  }
}

}  // namespace ort_aie::npu_target
