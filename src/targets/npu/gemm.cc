#include "targets/npu/gemm.h"

#include <algorithm>

#include "q4nx/layout.h"
#include "targets/host/scratch.h"
#include "targets/npu/conversions.h"
#include "targets/npu/designs.h"

namespace ort_aie::npu_target {
namespace {

// Of the design; its head comment states it.
constexpr int64_t kLeastRows = 64;
constexpr int64_t kRowMultiple = 512;  // rows of C that eight columns compute in a pass

struct PinnedBlocks {
  uint64_t generation;
  std::shared_ptr<Buffer> buffer;
};

std::shared_ptr<Buffer> Pin(Engine& engine, const GemmStep& step) {
  const auto pin = [&] {
    return engine.device().Pin(
        step.weights, static_cast<size_t>(2 * q4nx::PaddedRows(step.n) * q4nx::PaddedCols(step.k)));
  };
  if (step.kept == nullptr) return pin();
  const std::lock_guard lock(step.kept->mutex);
  auto kept = std::static_pointer_cast<PinnedBlocks>(step.kept->object);
  const uint64_t generation = engine.generation();
  if (kept == nullptr || kept->generation != generation) {
    step.kept->object = nullptr;  // before another takes its place
    kept = std::make_shared<PinnedBlocks>(PinnedBlocks{generation, pin()});
    step.kept->object = kept;
  }
  return kept->buffer;
}

void StoreRow(const host::Kernels& kernels, const GemmStep& step, int64_t row,
              const uint16_t* product) {
  void* to = host::Advance(step.y, step.type, row * step.n);
  if (step.bias == nullptr) return FromBfloat16(kernels, product, step.n, step.type, to);
  float* y = host::Scratch<float>(host::Purpose::kTile, 2 * step.n);
  kernels.bfloat16_to_float(product, step.n, y);
  host::ToFloat(kernels, step.type, step.bias, step.n, y + step.n);
  kernels.add(y + step.n, step.n, y);
  host::FromFloat(kernels, step.type, y, step.n, to);
}

}  // namespace

void RunGemm(Engine& engine, const GemmStep& step, const ThreadPool& threads) {
  const auto& kernels = engine.kernels();
  const int64_t k = q4nx::PaddedCols(step.k), n = q4nx::PaddedRows(step.n);
  int64_t most_rows = engine.options().row_bytes / (2 * std::max(k, n));
  if (step.prompt_chunk > 0) most_rows = std::min(most_rows, step.prompt_chunk);
  const int64_t run_rows =
      std::min(step.rows, std::max(kRowMultiple, most_rows / kRowMultiple * kRowMultiple));
  const auto padded_rows = [](int64_t rows) { return std::max(rows, kLeastRows); };

  const auto b = Pin(engine, step);
  const auto a = engine.device().Allocate(static_cast<size_t>(2 * k * padded_rows(run_rows)));
  const auto c = engine.device().Allocate(static_cast<size_t>(2 * n * padded_rows(run_rows)));
  Buffer* const arguments[] = {a.get(), b.get(), c.get()};
  for (int64_t first = 0; first < step.rows; first += run_rows) {
    const int64_t rows = std::min(run_rows, step.rows - first);
    {
      const Timed timed(engine, "activations");
      auto* to = reinterpret_cast<uint16_t*>(a->host());
      threads.ParallelFor(padded_rows(rows), [&](int64_t row) {
        uint16_t* x = to + row * k;
        const int64_t count = row < rows ? step.k : 0;
        if (count > 0) {
          ToBfloat16(kernels, step.type, host::Advance(step.a, step.type, (first + row) * step.k),
                     count, x);
        }
        std::fill(x + count, x + k, uint16_t{0});
      });
      a->ToDevice(0, static_cast<size_t>(2 * k * padded_rows(rows)));
    }
    engine.Run(kGemm,
               {{"gemm",
                 {{"M", rows}, {"K", k}, {"N", n}},
                 {{"a", {0, 0}}, {"b", {1, 0}}, {"c", {2, 0}}}}},
               arguments);
    c->FromDevice(0, static_cast<size_t>(2 * n * padded_rows(rows)));
    const Timed timed(engine, "results");
    const auto* products = reinterpret_cast<const uint16_t*>(c->host());
    threads.ParallelFor(
        rows, [&](int64_t row) { StoreRow(kernels, step, first + row, products + row * n); });
  }
}

}  // namespace ort_aie::npu_target
