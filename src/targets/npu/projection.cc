#include "targets/npu/projection.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "q4nx/layout.h"
#include "targets/host/projection_rows.h"
#include "targets/npu/conversions.h"
#include "targets/npu/designs.h"
#include "targets/npu/vectors.h"
#include "targets/npu/weights.h"

namespace ort_aie::npu_target {
namespace {

using q4nx::CeilDiv;

// Of the designs; each states them in its head comment.
constexpr int64_t kGemmLeastRows = 64;

constexpr int64_t kRowMultiple = 512;  // rows of C that eight columns compute in a pass

using host::IsGated;

// W, and U where the step is gated.
struct PinnedWeights {
  uint64_t generation;
  DeviceMemory weights, up;
};

// The plan's, or those that the op keeps by itself.
PinnedWeights WeightsOf(Engine& engine, const PlanMemory* memory, const MatMulStep& step) {
  const bool gated = IsGated(step);
  if (memory != nullptr) {
    return {0, memory->Weights(step.weights),
            gated ? memory->Weights(step.up_weights) : DeviceMemory()};
  }
  const auto pin = [&](uint64_t generation) {
    const Matrix matrices[] = {{step.weights, step.n, step.k, step.form},
                               {step.up_weights, step.n, step.k, step.form}};
    std::vector<DeviceMemory> pinned = PinWeights(engine, std::span(matrices).first(gated ? 2 : 1));
    return PinnedWeights{generation, pinned.front(), gated ? pinned.back() : DeviceMemory()};
  };
  if (step.kept == nullptr) return pin(0);
  const std::lock_guard lock(step.kept->mutex);
  auto kept = std::static_pointer_cast<PinnedWeights>(step.kept->object);
  const uint64_t generation = engine.generation();
  if (kept == nullptr || kept->generation != generation) {
    step.kept->object = nullptr;  // before others take its place
    kept = nullptr;
    kept = std::make_shared<PinnedWeights>(pin(generation));
    step.kept->object = kept;
  }
  return *kept;
}

// Out-features [n0, n0 + count) of a row from products of the device, and what follows them; `up`
// is read where the step is gated.
void StoreProducts(const host::Kernels& kernels, const MatMulStep& step, int64_t row, int64_t n0,
                   int64_t count, const uint16_t* product, const uint16_t* up) {
  if (!IsGated(step) && step.bias == nullptr) {
    return FromBfloat16(kernels, product, count, step.type,
                        host::Advance(step.y, step.type, row * step.n + n0));
  }
  float* y = host::Scratch<float>(host::Purpose::kTile, 2 * count);
  kernels.bfloat16_to_float(product, count, y);
  if (IsGated(step)) kernels.bfloat16_to_float(up, count, y + count);
  host::StoreResults(step, kernels, row, n0, count, y, y + count);
}

}  // namespace

bool AppendProjection(Engine& engine, const PlanMemory* memory, Batch& batch, const char* design,
                      const MatMulStep& step) {
  const bool vectors = design == kDecode, gated = IsGated(step);
  // Norms of rows that are longer than any of the device's are the host's.
  RowInput input(
      engine, batch, vectors && step.k <= kVectorMaxK,
      {step.a, step.skip, step.norm_weight, step.sum, step.k, step.type, step.norm_epsilon});
  const size_t bias_bytes = static_cast<size_t>(step.n) * SizeOf(step.type);
  if (!input.Ready() || !batch.OnHost(step.bias, bias_bytes)) return false;
  const PinnedWeights pinned = WeightsOf(engine, memory, step);
  const int64_t k = q4nx::PaddedCols(step.k), n = DeviceRows(step.n);
  const npu::BufferView x = input.Make();

  // A bias that cores have no room for is the host's to add.
  const bool bias_there = step.bias != nullptr && step.n <= kMatvecMaxBias;
  const auto matvec = [&](const DeviceMemory& weights, npu::BufferView y) {
    std::optional<npu::BufferView> added;
    if (bias_there) {
      added = batch.Input(
          n, [&](uint16_t* to) { ToBfloat16(engine.kernels(), step.type, step.bias, step.n, to); });
    }
    // A row that cores have no room for goes in parts, each of which takes the ones before as its
    // bias.
    const int64_t blocks = q4nx::ColBlocks(k), parts = CeilDiv(k, kMatvecMaxK);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t first = blocks * part / parts, count = blocks * (part + 1) / parts - first;
      const npu::BufferView to = part + 1 < parts ? batch.Scratch(n) : y;
      const int64_t offset = weights.offset + first * q4nx::kBlockBytes;
      npu::Invocation invocation{
          "matvec",
          {{"N", n}, {"K", count * q4nx::kBlockCols}, {"bias", added ? 1 : 0}, {"activation", 0}},
          {{"x", {x.argument, x.offset + 2 * first * q4nx::kBlockCols}},
           {"w", batch.View(weights.buffer, offset)},
           {"bias", added.value_or(x)},  // of no bytes without one
           {"y", to}}};
      if (parts > 1) {
        invocation.sequence = "matvec_part";
        invocation.parameters["row_K"] = k;
      }
      batch.Invoke(std::move(invocation));
      added = to;
    }
  };
  if (gated && vectors) {
    // Rows of no weights are zeros, and so is what `glu` makes of them.
    const int64_t width = std::max(n, kGluLeast);
    const npu::BufferView both =
        width == n ? batch.Scratch(2 * n) : batch.Input(2 * width, [](uint16_t*) {});
    matvec(pinned.weights, both);
    matvec(pinned.up, {both.argument, both.offset + 2 * width});
    batch.Invoke(
        {"glu",
         {{"n", width}, {"rows", 1}, {"kind", step.activation == Activation::kSilu ? 0 : 1}},
         {{"gate_up", both}, {"y", batch.Output(step.y, step.n, step.type, width)}}});
    return true;
  }
  if (!gated && (step.bias == nullptr || bias_there)) {
    matvec(pinned.weights, batch.Output(step.y, step.n, step.type, n));
    return true;
  }
  const npu::BufferView y = batch.Result(n), up = gated ? batch.Result(n) : y;
  matvec(pinned.weights, y);
  if (gated) matvec(pinned.up, up);
  batch.Then([&engine, &step, y, up](const Batch::Results& results) {
    StoreProducts(engine.kernels(), step, 0, 0, step.n, results[y], results[up]);
  });
  batch.Writes(step.y, step.n, step.type, std::nullopt);
  return true;
}

void ProjectPrompt(Engine& engine, const PlanMemory* memory, PromptWeights& prompt,
                   std::span<const Step> steps, const ThreadPool& threads) {
  const auto& step = std::get<MatMulStep>(steps.front());
  const auto& kernels = engine.kernels();
  const int products = IsGated(step) ? 2 : 1;
  const int64_t k = q4nx::PaddedCols(step.k), n = DeviceRows(step.n);

  // Weights that have to be dequantised are so in bands of out-features.
  const bool dequantised = step.form != WeightForm::kBf16;
  const int64_t block_rows = q4nx::RowBlocks(n);
  const int64_t most_block_rows = std::max(
      engine.options().weight_bytes / (2 * k * q4nx::kBlockRows), 2 * kLeastN / q4nx::kBlockRows);
  const int64_t bands = dequantised ? CeilDiv(block_rows, most_block_rows) : 1;
  const int64_t band_blocks = CeilDiv(block_rows, bands), band_n = band_blocks * q4nx::kBlockRows;

  int64_t most_rows = engine.options().row_bytes / (2 * std::max(k, products * band_n));
  if (step.prompt_chunk > 0) most_rows = std::min(most_rows, step.prompt_chunk);
  const int64_t run_rows =
      std::min(step.rows, std::max(kRowMultiple, most_rows / kRowMultiple * kRowMultiple));
  const auto padded_rows = [](int64_t rows) { return std::max(rows, kGemmLeastRows); };

  const PinnedWeights pinned = WeightsOf(engine, memory, step);
  const DeviceMemory weights[] = {pinned.weights, pinned.up};
  DeviceMemory b[] = {pinned.weights, pinned.up};
  Engine::Scratch scratch;
  std::optional<PromptWeights::Place> ready;
  if (dequantised && memory != nullptr) ready = prompt.Get(*memory, steps);
  if (ready) {
    b[0] = ready->weights;
    b[1] = ready->up;
  } else if (dequantised) {
    prompt.Forget();
    scratch = engine.TakeScratch(static_cast<size_t>(2 * band_n * k), IsGated(step));
    b[0] = {scratch.buffers[0]};
    b[1] = {scratch.buffers[1]};
  }
  const auto a = engine.device().Allocate(static_cast<size_t>(2 * k * padded_rows(run_rows)));
  const auto c =
      engine.device().Allocate(static_cast<size_t>(2 * band_n * padded_rows(run_rows) * products));

  const auto dequantise = [&](int64_t first_block) {
    npu::Plan plan;
    BufferList buffers;
    const int64_t first =
        q4nx::BytesOfBlocks(first_block * q4nx::kBlockRows, k, DeviceForm(step.form));
    for (int i = 0; i < products; ++i) {
      plan.push_back({"dequant",
                      {{"blocks", band_blocks * q4nx::ColBlocks(k)}},
                      {{"w", buffers.View(weights[i], first)}, {"b", buffers.View(b[i])}}});
    }
    engine.Run(kDequant, plan, buffers.list());
  };
  const auto load_rows = [&](int64_t first, int64_t rows) {
    const TraceSpan traced("host", "activations");
    auto* to = reinterpret_cast<uint16_t*>(a->host());
    const float* norm_weight = host::NormWeight(step, kernels);
    threads.ParallelFor(padded_rows(rows), [&](int64_t row) {
      uint16_t* x = to + row * k;
      const int64_t count = row < rows ? step.k : 0;
      if (count > 0 && norm_weight == nullptr && step.skip == nullptr) {
        ToBfloat16(kernels, step.type, host::Advance(step.a, step.type, (first + row) * count),
                   count, x);
      } else if (count > 0) {
        float* floats = host::Scratch<float>(host::Purpose::kRow, count);
        host::LoadRow(step, kernels, norm_weight, first + row, floats);
        kernels.float_to_bfloat16(floats, count, x);
      }
      std::fill(x + count, x + k, uint16_t{0});
    });
    a->ToDevice(0, static_cast<size_t>(2 * k * padded_rows(rows)));
  };
  const auto multiply = [&](int64_t rows) {
    const int64_t c_elements = band_n * padded_rows(rows);
    npu::Plan plan;
    BufferList buffers;
    for (int i = 0; i < products; ++i) {
      plan.push_back({"gemm",
                      {{"M", rows}, {"K", k}, {"N", band_n}},
                      {{"a", buffers.View({a})},
                       {"b", buffers.View(b[i])},
                       {"c", buffers.View({c}, 2 * i * c_elements)}}});
    }
    engine.Run(kGemm, plan, buffers.list());
    c->FromDevice(0, static_cast<size_t>(2 * c_elements * products));
  };
  const auto store_rows = [&](int64_t first, int64_t rows, int64_t n0) {
    const TraceSpan traced("host", "results");
    const auto* y = reinterpret_cast<const uint16_t*>(c->host());
    const auto* up = y + band_n * padded_rows(rows);
    threads.ParallelFor(rows, [&](int64_t row) {
      StoreProducts(kernels, step, first + row, n0, std::min(band_n, step.n - n0), y + row * band_n,
                    up + row * band_n);
    });
  };

  for (int64_t band = 0; band < bands; ++band) {
    // The last one ends with the matrix: some of its rows are the one before's.
    const int64_t first_block = std::min(band * band_blocks, block_rows - band_blocks);
    if (dequantised && !ready) dequantise(first_block);
    for (int64_t first = 0; first < step.rows; first += run_rows) {
      const int64_t rows = std::min(run_rows, step.rows - first);
      if (band == 0 || run_rows < step.rows) load_rows(first, rows);
      multiply(rows);
      store_rows(first, rows, first_block * q4nx::kBlockRows);
    }
  }
}

}  // namespace ort_aie::npu_target
