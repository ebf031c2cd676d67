// Layers of experts. The experts of a token, or of a few, are two sections of work on all threads:
// the products of all of them before the activation, then those after it. If any expert of a chunk
// has more rows than are streamed, each expert is two projections of its own instead, as in a
// prompt. Either way, results of a row are added in the order of experts, so the number of threads
// does not change the sum.
#include <algorithm>
#include <cstring>
#include <limits>

#include "ops/routing.h"
#include "targets/host/host_target.h"
#include "targets/host/projection_rows.h"
#include "targets/host/runs.h"
#include "targets/host/scratch.h"
#include "targets/host/streamed_rows.h"
#include "targets/host/work.h"

namespace ort_aie::host {
namespace {

using q4nx::CeilDiv;
using q4nx::kBlockRows;
using q4nx::PaddedCols;
using q4nx::RowBlocks;

// Rows [begin, begin + count) of a step, and the experts that they use.
struct ExpertRows {
  int64_t begin, count;
  Routing routing;

  int64_t pairs() const { return static_cast<int64_t>(routing.row.size()); }
  int64_t first(int32_t expert) const { return routing.first[static_cast<size_t>(expert)]; }
  int64_t row(int64_t pair) const { return routing.row[static_cast<size_t>(pair)]; }
  float weight(int64_t pair) const { return routing.weight[static_cast<size_t>(pair)]; }
};

Routing RouteOnHost(const MoEStep& step, int64_t begin, int64_t count, const Kernels& kernels) {
  const auto floats = [&](const void* x, Purpose purpose) -> const float* {
    if (x == nullptr) return nullptr;
    return Floats(kernels, step.type, Advance(x, step.type, begin * step.experts),
                  count * step.experts, purpose);
  };
  return RouteRows(step, count, floats(step.router, Purpose::kRouterLogits),
                   floats(step.router_weights, Purpose::kRouterWeights),
                   Scratch<int32_t>(Purpose::kRouting, RoutingWords(step, count)));
}

// sum += weight * x
void AddWeighted(const float* x, float weight, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; ++i) sum[i] += weight * x[i];
}

void Store(const MoEStep& step, const Kernels& kernels, int64_t row, int64_t n0, int64_t n,
           const float* sum) {
  FromFloat(kernels, step.type, sum, n, Advance(step.y, step.type, row * step.hidden + n0));
}

// Gate and up are one projection, with the activation, if they have one form; else two without it.
enum class Part { kBoth, kGate, kUp };

MatMulStep InOf(const MoEStep& step, Part part, int64_t expert, int64_t rows, const float* x,
                float* h) {
  MatMulStep in = StepsOfExpert(step, expert, rows, x, h, nullptr).in;
  if (part == Part::kBoth) return in;
  if (part == Part::kUp) {
    in.weights = in.up_weights;
    in.bias = in.up_bias;
    in.form = step.up_form;
  }
  in.up_weights = nullptr;
  in.up_bias = nullptr;
  in.activation = Activation::kNone;
  return in;
}

// h (rows, inter), by project(part, result).
template <typename Project>
void ProjectIn(const MoEStep& step, int64_t rows, float* h, const Kernels& kernels,
               const ThreadPool& threads, const Project& project) {
  if (step.up_form == step.form) return project(Part::kBoth, h);
  float* up = Scratch<float>(Purpose::kExpertUp, rows * step.inter);
  project(Part::kGate, h);
  project(Part::kUp, up);
  MatMulStep rest = InOf(step, Part::kBoth, 0, rows, nullptr, h);
  rest.bias = rest.up_bias = nullptr;  // already added
  threads.ParallelFor(rows, PassNs(step.inter), [&](int64_t row) {
    const int64_t first = row * step.inter;
    StoreResults(rest, kernels, row, 0, step.inter, h + first, up + first);
  });
}

// The first projection of each expert, or a part of it: h (pairs, inter).
void StreamIn(const MoEStep& step, const ExpertRows& rows, Part part, float* h,
              const Kernels& kernels, const ThreadPool& threads) {
  MatMulStep all = InOf(step, part, 0, rows.pairs(), nullptr, nullptr);
  all.a = step.x;
  all.type = step.type;
  // One row is prepared once for all its experts. Of several rows, each expert gets a copy of those
  // that it uses, one after the other.
  const bool shared = rows.count == 1;
  const int64_t prepared = shared ? 1 : rows.pairs();
  StreamedRows x(all, prepared, kernels);
  const int64_t padded = PaddedCols(step.hidden, all.form);
  threads.ParallelFor(prepared, PassNs(padded), [&](int64_t pair) {
    const int64_t row = rows.begin + (shared ? 0 : rows.row(pair));
    x.Prepare(pair, LoadPadded(all, kernels, nullptr, row, Scratch<float>(Purpose::kRow, padded)));
  });

  const int64_t row_blocks = RowBlocks(step.inter);
  const auto used = static_cast<int64_t>(rows.routing.used.size());
  const int64_t least = LeastRun(RowBytes(all), 1);
  InRuns(used * row_blocks, least, threads, [&](int64_t begin, int64_t n) {
    for (const int64_t end = begin + n; begin < end;) {
      const int32_t expert = rows.routing.used[static_cast<size_t>(begin / row_blocks)];
      const int64_t first = rows.first(expert), count = rows.routing.RowsOf(expert);
      const MatMulStep in = InOf(step, part, expert, count, nullptr, h + first * step.inter);
      const int64_t block = begin % row_blocks, blocks = std::min(end - begin, row_blocks - block);
      StreamBand(in, kernels, block, blocks, [&](const uint8_t* its, float* y, int64_t ldy) {
        x.Multiply(kernels, its, shared ? 0 : first, count, y, ldy);
      });
      begin += blocks;
    }
  });
}

void StreamOut(const MoEStep& step, const ExpertRows& rows, const float* h, const Kernels& kernels,
               const ThreadPool& threads) {
  MatMulStep all = StepsOfExpert(step, 0, rows.pairs(), nullptr, nullptr, nullptr).out;
  all.a = h;
  StreamedRows x(all, rows.pairs(), kernels);
  const int64_t padded = PaddedCols(step.inter, step.down_form);
  threads.ParallelFor(rows.pairs(), PassNs(padded), [&](int64_t pair) {
    x.Prepare(pair, LoadPadded(all, kernels, nullptr, pair, Scratch<float>(Purpose::kRow, padded)));
  });

  const int64_t row_blocks = RowBlocks(step.hidden);
  const auto used = static_cast<int64_t>(rows.routing.used.size());
  const int64_t least = LeastRun(RowBytes(all) * used, 1);
  InRuns(row_blocks, least, threads, [&](int64_t block, int64_t blocks) {
    const int64_t n0 = block * kBlockRows;
    const int64_t n = std::min(blocks * kBlockRows, step.hidden - n0);
    float* sums = Scratch<float>(Purpose::kExpertResults, 2 * rows.count * n);
    float* results = sums + rows.count * n;
    std::fill(sums, sums + rows.count * n, 0.0f);
    for (const int32_t expert : rows.routing.used) {
      const int64_t first = rows.first(expert), count = rows.routing.RowsOf(expert);
      // Stores to results (count, n) instead of y (count, hidden).
      MatMulStep out = StepsOfExpert(step, expert, count, nullptr, nullptr, results).out;
      out.weights += block * RowBytes(out);
      out.bias = out.bias == nullptr ? nullptr : static_cast<const float*>(out.bias) + n0;
      out.n = n;
      StreamBand(out, kernels, 0, blocks, [&](const uint8_t* its, float* y, int64_t ldy) {
        x.Multiply(kernels, its, first, count, y, ldy);
      });
      for (int64_t i = 0; i < count; ++i) {
        AddWeighted(results + i * n, rows.weight(first + i), n, sums + rows.row(first + i) * n);
      }
    }
    for (int64_t row = 0; row < rows.count; ++row) {
      Store(step, kernels, rows.begin + row, n0, n, sums + row * n);
    }
  });
}

void OneByOne(const MoEStep& step, const ExpertRows& rows, const Kernels& kernels,
              const ThreadPool& threads) {
  int64_t most = 0;
  for (const int32_t expert : rows.routing.used) {
    most = std::max(most, rows.routing.RowsOf(expert));
  }
  float* x = Scratch<float>(Purpose::kExpertRows, most * step.hidden);
  float* h = Scratch<float>(Purpose::kExpertHidden, most * step.inter);
  float* y = Scratch<float>(Purpose::kExpertResults, (most + rows.count) * step.hidden);
  float* sums = y + most * step.hidden;
  std::fill(sums, sums + rows.count * step.hidden, 0.0f);
  for (const int32_t expert : rows.routing.used) {
    const int64_t first = rows.first(expert), count = rows.routing.RowsOf(expert);
    threads.ParallelFor(count, SumNs(step.hidden), [&](int64_t i) {
      const int64_t row = rows.begin + rows.row(first + i);
      ToFloat(kernels, step.type, Advance(step.x, step.type, row * step.hidden), step.hidden,
              x + i * step.hidden);
    });
    ProjectIn(step, count, h, kernels, threads, [&](Part part, float* to) {
      RunMatMul(InOf(step, part, expert, count, x, to), kernels, threads);
    });
    RunMatMul(StepsOfExpert(step, expert, count, x, h, y).out, kernels, threads);
    threads.ParallelFor(count, SumNs(step.hidden), [&](int64_t i) {
      AddWeighted(y + i * step.hidden, rows.weight(first + i), step.hidden,
                  sums + rows.row(first + i) * step.hidden);
    });
  }
  threads.ParallelFor(rows.count, SumNs(step.hidden), [&](int64_t row) {
    Store(step, kernels, rows.begin + row, 0, step.hidden, sums + row * step.hidden);
  });
}

}  // namespace

void RunMoE(const MoEStep& step, const Kernels& kernels, const ThreadPool& threads) {
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const WeightForm& form : {step.form, step.up_form, step.down_form}) {
    most = std::min(most, MostStreamedRows(kernels, form, step.numerics));
  }
  const int64_t chunk = ChunkTokens(step.prompt_chunk, 1, 1);
  for (int64_t begin = 0; begin < step.rows; begin += chunk) {
    const int64_t count = std::min(chunk, step.rows - begin);
    const ExpertRows rows{begin, count, RouteOnHost(step, begin, count, kernels)};
    const bool streamed = std::ranges::all_of(
        rows.routing.used, [&](int32_t expert) { return rows.routing.RowsOf(expert) <= most; });
    if (!streamed) {
      OneByOne(step, rows, kernels, threads);
      continue;
    }
    float* h = Scratch<float>(Purpose::kExpertHidden, rows.pairs() * step.inter);
    ProjectIn(step, rows.pairs(), h, kernels, threads,
              [&](Part part, float* to) { StreamIn(step, rows, part, to, kernels, threads); });
    StreamOut(step, rows, h, kernels, threads);
  }
}

}  // namespace ort_aie::host
