// Projections, with the norm before and the gate after them. One row and a few rows are FusedDQP.
// With weights of two bits, they are lookups. More rows and bf16 weights are dequantisation + GEMM.
#include <algorithm>
#include <array>
#include <chrono>

#include "q4nx/layout.h"
#include "targets/host/host_target.h"
#include "targets/host/lookup_tables.h"
#include "targets/host/projection_rows.h"
#include "targets/host/scratch.h"
#include "targets/host/streamed_rows.h"
#include "targets/host/work.h"

namespace ort_aie::host {
namespace {

using q4nx::BlockBytes;
using q4nx::CeilDiv;
using q4nx::ColBlocks;
using q4nx::kBlockCols;
using q4nx::kBlockRows;
using q4nx::kGroup;
using q4nx::PaddedCols;
using q4nx::RowBlocks;

// Chunks of rows that must stay in L2 are multiples of this: two AMX tiles, one above the other.
constexpr int64_t kRowUnit = 32;

// Rows of blocks [begin, end), all rows of activations at once: multiply(blocks, y, ldy) computes
// 32 out-features of each from a row of blocks, on any thread.
template <typename Multiply>
void Stream(const MatMulStep& step, int64_t begin, int64_t end, const Kernels& kernels,
            const ThreadPool& threads, const Multiply& multiply) {
  const int64_t per_task = BandOf(end - begin, RowBytes(step) * (IsGated(step) ? 2 : 1));
  threads.ParallelFor(CeilDiv(end - begin, per_task), [&](int64_t task) {
    const int64_t first = begin + task * per_task;
    StreamBand(step, kernels, first, std::min(end - first, per_task), multiply);
  });
}

// prepare(row, x) is called with x padded with zeros to whole blocks.
template <typename Prepare>
void PrepareRows(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads,
                 const Prepare& prepare) {
  const int64_t padded = PaddedCols(step.k);
  const float* norm_weight = NormWeight(step, kernels);
  threads.ParallelFor(step.rows, PassNs(padded), [&](int64_t row) {
    float* buffer = Scratch<float>(Purpose::kRow, padded);
    prepare(row, LoadPadded(step, kernels, norm_weight, row, buffer));
  });
}

// FusedDqp and LookupRow prepare the activations, and call stream(multiply). multiply looks into
// `kernels` each time.
template <typename F>
void FusedDqp(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads,
              const F& stream) {
  const StreamedRows rows(step, step.rows, kernels);
  PrepareRows(step, kernels, threads, [&](int64_t row, const float* x) { rows.Take(row, x); });
  stream([&](const uint8_t* blocks, float* y, int64_t ldy) {
    rows.Multiply(blocks, 0, step.rows, y, ldy);
  });
}

template <typename F>
void LookupRow(const MatMulStep& step, const Kernels& kernels, const F& stream) {
  const int64_t k_blocks = ColBlocks(step.k), padded = PaddedCols(step.k);
  const bool bf16 = step.numerics == Numerics::kBf16;
  const float* x = LoadPadded(step, kernels, NormWeight(step, kernels), 0,
                              Scratch<float>(Purpose::kRow, padded));
  const LookupTables tables = TablesOf(kernels, bf16, x, padded);
  const BlockLayout layout = LayoutOf(step.form, step.symmetric);
  stream([&](const uint8_t* blocks, float* y, int64_t /*ldy*/) {
    const LookupMatvec& matvec = bf16 ? kernels.lookup->bf16 : kernels.lookup->int8;
    matvec.multiply(blocks, k_blocks, tables.tables, tables.steps, tables.sums, layout, y);
  });
}

template <typename F>
void Streamed(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads,
              const F& stream) {
  const bool lookup = step.form.kind == WeightKind::kQ2NX && step.rows == 1;
  lookup ? LookupRow(step, kernels, stream) : FusedDqp(step, kernels, threads, stream);
}

// What a GEMM of some numerics keeps of a chunk of activations, and of 32 rows of weights. Both are
// made once and used many times; Panel is in the working memory of the thread that unpacks it.
class Bf16Gemm {
 public:
  Bf16Gemm(const MatMulStep& step, int64_t rows, const Kernels& kernels)
      : kernels_(kernels),
        padded_(PaddedCols(step.k)),
        layout_(LayoutOf(step.form, step.symmetric)),
        row_(RowElements(step)),
        unpack_block_(UnpackerOf(step.form, kernels)),
        a_(Scratch<uint16_t>(Purpose::kActivations, rows * row_)) {}

  static const GemmBlocking& Blocking(const Kernels& kernels) { return kernels.bf16_blocking; }
  static int64_t RowBytes(const MatMulStep& step) { return 2 * RowElements(step); }

  void TakeRow(int64_t row, const float* x) const {
    kernels_.float_to_bfloat16(x, padded_, a_ + row * row_);
  }

  using Panel = const uint16_t*;
  Panel Unpack(const uint8_t* weights, Purpose codes, Purpose /*scales*/) const {
    uint16_t* panel = Scratch<uint16_t>(codes, padded_ * kBlockRows);
    for (int64_t b = 0; b < padded_ / kBlockCols; ++b) {
      unpack_block_(weights + b * layout_.bytes, layout_, panel + b * kBlockCols * kBlockRows);
    }
    return panel;
  }

  void Multiply(int64_t first, int64_t rows, Panel panel, float* y, int64_t ldy) const {
    kernels_.gemm_bf16(a_ + first * row_, row_, rows, panel, padded_ / 2, y, ldy);
  }

 private:
  // One cache line more than needed: rows that are a multiple of 4,096 bytes apart would all map to
  // the same few lines of L1.
  static int64_t RowElements(const MatMulStep& step) { return PaddedCols(step.k) + 32; }

  using Unpacker = decltype(Kernels::dequantize_block);
  static Unpacker UnpackerOf(const WeightForm& form, const Kernels& kernels) {
    switch (form.kind) {
      case WeightKind::kQ2NX:
        return kernels.lookup->dequantize_block;
      case WeightKind::kQ8NX:
        return kernels.bytes.dequantize_block;
      case WeightKind::kBf16:
        return kernels.interleave_block;
      default:
        return kernels.dequantize_block;
    }
  }

  const Kernels& kernels_;
  const int64_t padded_;
  const BlockLayout layout_;
  const int64_t row_;
  Unpacker unpack_block_;
  uint16_t* a_;
};

class Int8Gemm {
 public:
  Int8Gemm(const MatMulStep& step, int64_t rows, const Kernels& kernels)
      : kernels_(kernels),
        padded_(PaddedCols(step.k)),
        groups_(padded_ / kGroup),
        layout_(LayoutOf(step.form, step.symmetric)),
        unpack_block_(UnpackerOf(step.form, kernels)),
        a_(Scratch<uint8_t>(Purpose::kActivations, rows * padded_)),
        a_scales_(Scratch<float>(Purpose::kActivationScales, rows * groups_)),
        q_sums_(Scratch<int32_t>(Purpose::kCodeSums, rows * groups_)) {}

  static const GemmBlocking& Blocking(const Kernels& kernels) { return kernels.int8_blocking; }
  static int64_t RowBytes(const MatMulStep& step) { return PaddedCols(step.k); }

  void TakeRow(int64_t row, const float* x) const {
    kernels_.quantize_int8(x, groups_, 128, a_ + row * padded_, a_scales_ + row * groups_,
                           q_sums_ + row * groups_);
  }

  struct Panel {
    const int8_t* codes;
    const float *scales, *mins;
    const int32_t* offsets;
  };
  Panel Unpack(const uint8_t* weights, Purpose codes_purpose, Purpose scales_purpose) const {
    const int64_t count = groups_ * kBlockRows;
    int8_t* codes = Scratch<int8_t>(codes_purpose, padded_ * kBlockRows);
    float* scales = Scratch<float>(scales_purpose, 3 * count);
    float* mins = scales + count;
    auto* offsets = reinterpret_cast<int32_t*>(mins + count);
    for (int64_t b = 0; b < padded_ / kBlockCols; ++b) {
      unpack_block_(weights + b * layout_.bytes, layout_, codes + b * kBlockCols * kBlockRows,
                    scales + b * kBlockCols, layout_.symmetric ? nullptr : mins + b * kBlockCols,
                    offsets + b * kBlockCols);
    }
    return {codes, scales, layout_.symmetric ? nullptr : mins, offsets};
  }

  void Multiply(int64_t first, int64_t rows, const Panel& panel, float* y, int64_t ldy) const {
    kernels_.gemm_int8(a_ + first * padded_, a_scales_ + first * groups_, q_sums_ + first * groups_,
                       padded_, rows, panel.codes, panel.scales, panel.mins, panel.offsets, groups_,
                       y, ldy);
  }

  using Unpacker = decltype(Kernels::unpack_block);
  // Null if the kernels do not have it.
  static Unpacker UnpackerOf(const WeightForm& form, const Kernels& kernels) {
    return form.kind == WeightKind::kQ2NX   ? kernels.lookup->unpack_block
           : form.kind == WeightKind::kQ8NX ? kernels.bytes.unpack_block
                                            : kernels.unpack_block;
  }

 private:
  const Kernels& kernels_;
  const int64_t padded_, groups_;
  const BlockLayout layout_;
  Unpacker unpack_block_;
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
  threads.ParallelFor(rows.count, PassNs(PaddedCols(step.k)), [&](int64_t row) {
    float* buffer = Scratch<float>(Purpose::kRow, PaddedCols(step.k));
    gemm.TakeRow(row, LoadPadded(step, kernels, norm_weight, rows.begin + row, buffer));
  });

  const int64_t row_bytes = ColBlocks(step.k) * BlockBytes(step.form);
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

int64_t MostStreamedRows(const Kernels& kernels, WeightKind kind, Numerics numerics) {
  const bool int8 = numerics == Numerics::kInt8;
  switch (kind) {
    case WeightKind::kQ4NX:
      return int8 ? kernels.most_rows.int8 : kernels.most_rows.bf16;
    case WeightKind::kQ2NX:
      return (int8 ? kernels.lookup->int8 : kernels.lookup->bf16).most_rows;
    case WeightKind::kQ8NX:
      return int8 ? kernels.bytes.most_rows.int8 : kernels.bytes.most_rows.bf16;
    default:
      return 0;
  }
}

void RunGemm(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const bool int8 = step.numerics == Numerics::kInt8 && !kernels.prompts_in_bf16 &&
                    Int8Gemm::UnpackerOf(step.form, kernels) != nullptr;
  (int8 ? Gemm<Int8Gemm> : Gemm<Bf16Gemm>)(step, kernels, threads);
}

void RunMatMul(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  if (step.rows > MostStreamedRows(kernels, step.form.kind, step.numerics)) {
    RunGemm(step, kernels, threads);
  } else {
    Streamed(step, kernels, threads, [&](const auto& multiply) {
      Stream(step, 0, RowBlocks(step.n), kernels, threads, multiply);
    });
  }
}

std::array<double, 2> RunHalves(const MatMulStep& step,
                                const std::array<const Kernels*, 2>& kernels,
                                const ThreadPool& threads) {
  const int64_t ends[] = {0, RowBlocks(step.n) / 2, RowBlocks(step.n)};
  std::array<double, 2> seconds{};
  Kernels now = *kernels[0];
  Streamed(step, now, threads, [&](const auto& multiply) {
    for (size_t half = 0; half < 2; ++half) {
      now = *kernels[half];
      const auto begin = std::chrono::steady_clock::now();
      Stream(step, ends[half], ends[half + 1], now, threads, multiply);
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      seconds[half] = time.count() / static_cast<double>(ends[half + 1] - ends[half]);
    }
  });
  return seconds;
}

}  // namespace ort_aie::host
