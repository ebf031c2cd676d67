// Projections, with the norm before and the gate after them. One row and a few rows are FusedDQP.
// With weights of two bits, they are lookups. More rows and bf16 weights are dequantisation + GEMM.
#include <algorithm>
#include <array>
#include <chrono>

#include "q4nx/layout.h"
#include "targets/host/host_target.h"
#include "targets/host/projection_rows.h"
#include "targets/host/runs.h"
#include "targets/host/scratch.h"
#include "targets/host/streamed_rows.h"
#include "targets/host/work.h"

namespace ort_aie::host {
namespace {

using q4nx::CeilDiv;
using q4nx::kBlockCols;
using q4nx::kBlockRows;
using q4nx::kGroup;
using q4nx::RowBlocks;

// Chunks of rows that must stay in L2 are multiples of this: two AMX tiles, one above the other.
constexpr int64_t kRowUnit = 32;

int64_t PaddedK(const MatMulStep& step) { return q4nx::PaddedCols(step.k, step.form); }

// The activations of all rows, prepared on all threads.
StreamedRows Prepared(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  StreamedRows rows(step, step.rows, kernels);
  const int64_t padded = PaddedK(step);
  const float* norm_weight = NormWeight(step, kernels);
  threads.ParallelFor(step.rows, PassNs(padded), [&](int64_t row) {
    float* buffer = Scratch<float>(Purpose::kRow, padded);
    rows.Prepare(row, LoadPadded(step, kernels, norm_weight, row, buffer));
  });
  return rows;
}

// Rows of blocks [begin, end), each multiplied by all rows of activations while it is read.
void StreamBands(const MatMulStep& step, const StreamedRows& rows, int64_t begin, int64_t end,
                 const Kernels& kernels, const ThreadPool& threads) {
  InRuns(end - begin, LeastRun(RowBytes(step), step.rows), threads, [&](int64_t first, int64_t n) {
    StreamBand(step, kernels, begin + first, n, [&](const uint8_t* blocks, float* y, int64_t ldy) {
      rows.Multiply(kernels, blocks, 0, step.rows, y, ldy);
    });
  });
}

// --- a row of blocks as a panel, for GEMM -------------------------------------------------------

// Fetches the next block into L2, because blocks are unpacked faster than they come from memory.
// Always inlined: GCC 12 drops calls of functions that only prefetch.
__attribute__((always_inline)) inline void FetchNext(const uint8_t* block,
                                                     const BlockLayout& layout) {
  const uint8_t* next = block + layout.bytes;
  for (int64_t i = 0; i < layout.bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
}

// [k / 2][32][2] bfloat16.
void Dequantize(const MatMulStep& step, const Kernels& kernels, const uint8_t* blocks,
                uint16_t* panel) {
  const auto each = [&](auto dequantize_block) {
    const BlockLayout layout = LayoutOf(step.form, step.symmetric);
    for (int64_t k = 0; k < step.k; k += kBlockCols, blocks += layout.bytes) {
      FetchNext(blocks, layout);
      dequantize_block(blocks, layout, panel + k * kBlockRows);
    }
  };
  switch (step.form.kind) {
    case WeightKind::kQ4NX:
      return each(kernels.dequantize_block);
    case WeightKind::kQ2NX:
      return each(kernels.lookup->dequantize_block);
    case WeightKind::kQ8NX:
      return each(kernels.bytes.dequantize_block);
    case WeightKind::kBf16:
      return each(kernels.interleave_block);
    case WeightKind::kFile:
      return FilesOf(kernels, step.form).dequantize(blocks, step.k / kGroup, panel);
  }
}

// Codes [k / 4][32][4]; scales, minima and offsets by 32 in-features, or 16 as the form has them,
// [k / group][32]. Without minima, they are null.
struct CodePanel {
  int8_t* codes;
  float *scales, *mins;
  int32_t* offsets;
};

void Unpack(const MatMulStep& step, const Kernels& kernels, const uint8_t* blocks,
            const CodePanel& panel) {
  const auto each = [&](auto unpack_block) {
    const BlockLayout layout = LayoutOf(step.form, step.symmetric);
    for (int64_t k = 0; k < step.k; k += kBlockCols, blocks += layout.bytes) {
      FetchNext(blocks, layout);
      unpack_block(blocks, layout, panel.codes + k * kBlockRows, panel.scales + k,
                   panel.mins == nullptr ? nullptr : panel.mins + k, panel.offsets + k);
    }
  };
  switch (step.form.kind) {
    case WeightKind::kQ2NX:
      return each(kernels.lookup->unpack_block);
    case WeightKind::kQ8NX:
      return each(kernels.bytes.unpack_block);
    case WeightKind::kFile:
      return FilesOf(kernels, step.form)
          .unpack(blocks, step.k / kGroup, panel.codes, panel.scales, panel.mins, panel.offsets);
    default:
      return each(kernels.unpack_block);
  }
}

// What a GEMM of some numerics keeps of a chunk of activations, and of 32 rows of weights. Both are
// made once and used many times; Panel is in the working memory of the thread that unpacks it.
class Bf16Gemm {
 public:
  Bf16Gemm(const MatMulStep& step, int64_t rows, const Kernels& kernels)
      : step_(step),
        kernels_(kernels),
        padded_(PaddedK(step)),
        row_(RowElements(step)),
        a_(Scratch<uint16_t>(Purpose::kActivations, rows * row_)) {}

  static const GemmBlocking& Blocking(const Kernels& kernels) { return kernels.bf16_blocking; }
  static int64_t RowBytes(const MatMulStep& step) { return 2 * RowElements(step); }

  void PrepareRow(int64_t row, const float* x) const {
    kernels_.float_to_bfloat16(x, padded_, a_ + row * row_);
  }

  using Panel = const uint16_t*;
  Panel Unpack(const uint8_t* blocks, Purpose codes, Purpose /*scales*/) const {
    uint16_t* panel = Scratch<uint16_t>(codes, padded_ * kBlockRows);
    Dequantize(step_, kernels_, blocks, panel);
    return panel;
  }

  void Multiply(int64_t first, int64_t rows, Panel panel, float* y, int64_t ldy) const {
    kernels_.gemm_bf16(a_ + first * row_, row_, rows, panel, padded_ / 2, y, ldy);
  }

 private:
  // One cache line more than needed: rows that are a multiple of 4,096 bytes apart would all map to
  // the same few lines of L1.
  static int64_t RowElements(const MatMulStep& step) { return PaddedK(step) + 32; }

  const MatMulStep& step_;
  const Kernels& kernels_;
  const int64_t padded_, row_;
  uint16_t* a_;
};

class Int8Gemm {
 public:
  Int8Gemm(const MatMulStep& step, int64_t rows, const Kernels& kernels)
      : step_(step),
        kernels_(kernels),
        gemm_(GemmOf(step.form, kernels)),
        by_16_(step.form.group == 16),
        minima_(step.form.minima && (step.form.kind == WeightKind::kFile || !step.symmetric)),
        padded_(PaddedK(step)),
        groups_(padded_ / kGroup),
        sum_groups_(by_16_ ? 2 * groups_ : groups_),
        a_(Scratch<uint8_t>(Purpose::kActivations, rows * padded_)),
        a_scales_(Scratch<float>(Purpose::kActivationScales, rows * groups_)),
        q_sums_(Scratch<int32_t>(Purpose::kCodeSums, rows * sum_groups_)) {}

  static const GemmBlocking& Blocking(const Kernels& kernels) { return kernels.int8_blocking; }
  static int64_t RowBytes(const MatMulStep& step) { return PaddedK(step); }

  void PrepareRow(int64_t row, const float* x) const {
    (by_16_ ? kernels_.quantize_int8_16 : kernels_.quantize_int8)(
        x, groups_, 128, a_ + row * padded_, a_scales_ + row * groups_,
        q_sums_ + row * sum_groups_);
  }

  using Panel = CodePanel;
  Panel Unpack(const uint8_t* blocks, Purpose codes, Purpose scales) const {
    const int64_t count = sum_groups_ * kBlockRows;
    auto* numbers = Scratch<float>(scales, 3 * count);
    const CodePanel panel = {Scratch<int8_t>(codes, padded_ * kBlockRows), numbers,
                             minima_ ? numbers + count : nullptr,
                             reinterpret_cast<int32_t*>(numbers + 2 * count)};
    host::Unpack(step_, kernels_, blocks, panel);
    return panel;
  }

  void Multiply(int64_t first, int64_t rows, const Panel& panel, float* y, int64_t ldy) const {
    gemm_(a_ + first * padded_, a_scales_ + first * groups_, q_sums_ + first * sum_groups_, padded_,
          rows, panel.codes, panel.scales, panel.mins, panel.offsets, groups_, y, ldy);
  }

 private:
  const MatMulStep& step_;
  const Kernels& kernels_;
  decltype(Kernels::gemm_int8) gemm_;
  const bool by_16_, minima_;
  const int64_t padded_, groups_, sum_groups_;
  uint8_t* a_;
  float* a_scales_;
  int32_t* q_sums_;
};

// Rows [begin, begin + count) of a step.
struct Rows {
  int64_t begin, count;
};

template <typename G>
void GemmRows(const MatMulStep& step, const Rows& rows, const float* norm_weight,
              const Kernels& kernels, const ThreadPool& threads) {
  const G gemm(step, rows.count, kernels);
  const int64_t padded = PaddedK(step);
  threads.ParallelFor(rows.count, PassNs(padded), [&](int64_t row) {
    float* buffer = Scratch<float>(Purpose::kRow, padded);
    gemm.PrepareRow(row, LoadPadded(step, kernels, norm_weight, rows.begin + row, buffer));
  });

  const int64_t row_bytes = RowBytes(step);
  threads.ParallelFor(RowBlocks(step.n), [&](int64_t block) {
    const int64_t n0 = block * kBlockRows;
    const auto panel =
        gemm.Unpack(step.weights + block * row_bytes, Purpose::kPanel, Purpose::kPanelScales);
    auto up_panel = panel;
    if (IsGated(step)) {
      up_panel = gemm.Unpack(step.up_weights + block * row_bytes, Purpose::kUpPanel,
                             Purpose::kUpPanelScales);
    }
    // Float results of whole blocks are computed in place.
    const bool in_place = step.type == DataType::kFloat32 && n0 + kBlockRows <= step.n;
    const int64_t row_tile = G::Blocking(kernels).row_tile;
    const int64_t tile_rows = std::min(row_tile, rows.count);
    float* tile = Scratch<float>(Purpose::kTile, 2 * tile_rows * kBlockRows);
    float* up = tile + tile_rows * kBlockRows;
    for (int64_t first = 0; first < rows.count; first += row_tile) {
      const int64_t count = std::min(row_tile, rows.count - first);
      const int64_t row = rows.begin + first;
      float* y = in_place ? static_cast<float*>(step.y) + row * step.n + n0 : tile;
      const int64_t ldy = in_place ? step.n : kBlockRows;
      gemm.Multiply(first, count, panel, y, ldy);
      if (IsGated(step)) gemm.Multiply(first, count, up_panel, up, kBlockRows);
      if (in_place && StoresAsIs(step)) continue;
      for (int64_t r = 0; r < count; ++r) {
        StoreResults(step, kernels, row + r, n0, std::min(kBlockRows, step.n - n0), y + r * ldy,
                     up + r * kBlockRows);
      }
    }
  });
}

// Rows that are multiplied by all weights before the next rows are. A GEMM unpacks the weights once
// for each such chunk, so chunks may be half as large again as what stays in L2 if this makes them
// fewer.
template <typename G>
int64_t ChunkRows(const MatMulStep& step, const Kernels& kernels) {
  const GemmBlocking& blocking = G::Blocking(kernels);
  const int64_t most = ChunkTokens(step.prompt_chunk, 1, blocking.row_tile);
  if (blocking.resident_bytes == 0) return most;
  const int64_t resident = std::max(kRowUnit, blocking.resident_bytes / G::RowBytes(step));
  const int64_t chunks = std::max<int64_t>(1, (step.rows + resident / 2) / resident);
  const int64_t even = CeilDiv(CeilDiv(step.rows, chunks), kRowUnit) * kRowUnit;
  return std::min(most, even);
}

template <typename G>
void Gemm(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const float* norm_weight = NormWeight(step, kernels);
  const int64_t chunk = ChunkRows<G>(step, kernels);
  for (int64_t begin = 0; begin < step.rows; begin += chunk) {
    GemmRows<G>(step, {begin, std::min(chunk, step.rows - begin)}, norm_weight, kernels, threads);
  }
}

}  // namespace

int64_t MostStreamedRows(const Kernels& kernels, const WeightForm& form, Numerics numerics) {
  const bool int8 = numerics == Numerics::kInt8;
  const auto of = [int8](const auto& most_rows) { return int8 ? most_rows.int8 : most_rows.bf16; };
  switch (form.kind) {
    case WeightKind::kQ4NX:
      return of(kernels.most_rows);
    case WeightKind::kQ2NX:
      return (int8 ? kernels.lookup->int8 : kernels.lookup->bf16).most_rows;
    case WeightKind::kQ8NX:
      return of(kernels.bytes.most_rows);
    case WeightKind::kFile:
      return of(FilesOf(kernels, form).most_rows);
    case WeightKind::kBf16:
      break;
  }
  return 0;
}

void RunGemm(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const bool int8 = step.numerics == Numerics::kInt8 && !kernels.prompts_in_bf16;
  (int8 ? Gemm<Int8Gemm> : Gemm<Bf16Gemm>)(step, kernels, threads);
}

void RunMatMul(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  if (step.rows > MostStreamedRows(kernels, step.form, step.numerics)) {
    return RunGemm(step, kernels, threads);
  }
  StreamBands(step, Prepared(step, kernels, threads), 0, RowBlocks(step.n), kernels, threads);
}

std::array<double, 2> RunHalves(const MatMulStep& step,
                                const std::array<const Kernels*, 2>& kernels,
                                const ThreadPool& threads) {
  const StreamedRows rows = Prepared(step, *kernels[0], threads);
  const int64_t ends[] = {0, RowBlocks(step.n) / 2, RowBlocks(step.n)};
  std::array<double, 2> seconds{};
  for (size_t half = 0; half < 2; ++half) {
    const auto begin = std::chrono::steady_clock::now();
    StreamBands(step, rows, ends[half], ends[half + 1], *kernels[half], threads);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    seconds[half] = time.count() / static_cast<double>(ends[half + 1] - ends[half]);
  }
  return seconds;
}

}  // namespace ort_aie::host
