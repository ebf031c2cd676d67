// Gathers rows of an embedding, quantised or not.
#include <algorithm>
#include <cstring>

#include "q4nx/layout.h"
#include "q4nx/pack.h"
#include "targets/host/host_target.h"
#include "targets/host/scratch.h"
#include "targets/host/work.h"

namespace ort_aie::host {
namespace {

// Calls write(i, row) for each index; row is -1 if the index is out of range.
template <typename Write>
void ForEachRow(const GatherStep& step, int64_t item_ns, const ThreadPool& threads,
                const Write& write) {
  threads.ParallelFor(step.count, item_ns, [&](int64_t i) {
    int64_t row = step.index_type == DataType::kInt64
                      ? static_cast<const int64_t*>(step.indices)[i]
                      : static_cast<const int32_t*>(step.indices)[i];
    if (row < 0) row += step.n;
    write(i, row < 0 || row >= step.n ? -1 : row);
  });
}

void CopyRows(const GatherStep& step, const ThreadPool& threads) {
  const int64_t bytes = BytesOf(step.type, step.k);
  ForEachRow(step, CopyNs(bytes), threads, [&](int64_t i, int64_t row) {
    uint8_t* y = static_cast<uint8_t*>(step.y) + i * bytes;
    if (row < 0) {
      std::memset(y, 0, static_cast<size_t>(bytes));
    } else {
      std::memcpy(y, step.weights + row * bytes, static_cast<size_t>(bytes));
    }
  });
}

void DequantizeRows(const GatherStep& step, const Kernels& kernels, const ThreadPool& threads) {
  ForEachRow(step, PassNs(step.k), threads, [&](int64_t i, int64_t row) {
    float* x = Scratch<float>(Purpose::kRow, q4nx::PaddedCols(step.k));
    if (row < 0) {
      std::fill(x, x + step.k, 0.0f);
    } else {
      q4nx::DequantizeRow(step.weights, row, step.k, x, step.form);
    }
    FromFloat(kernels, step.type, x, step.k, Advance(step.y, step.type, i * step.k));
  });
}

}  // namespace

void RunGather(const GatherStep& step, const Kernels& kernels, const ThreadPool& threads) {
  if (step.is_table) {
    CopyRows(step, threads);
  } else {
    DequantizeRows(step, kernels, threads);
  }
}

}  // namespace ort_aie::host
