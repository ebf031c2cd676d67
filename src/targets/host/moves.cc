// Elements in another order.
#include <algorithm>
#include <cstring>

#include "q4nx/layout.h"
#include "targets/host/host_target.h"
#include "targets/host/work.h"

namespace ort_aie::host {
namespace {

// Runs of x that are read together: those of a row of a transposed matrix share a cache line.
constexpr int64_t kTogether = 16;

// `bytes` is a constant where a copy of it is one instruction.
template <typename Bytes>
void MoveRuns(const MoveStep& step, int64_t outer, int64_t first, int64_t last, Bytes bytes) {
  const auto* x = static_cast<const uint8_t*>(step.x) + outer * step.strides[0];
  auto* y = static_cast<uint8_t*>(step.y) + outer * step.counts[1] * step.counts[2] * bytes();
  for (int64_t j = 0; j < step.counts[2]; ++j) {
    for (int64_t i = first; i < last; ++i) {
      std::memcpy(y + (i * step.counts[2] + j) * bytes(),
                  x + i * step.strides[1] + j * step.strides[2], static_cast<size_t>(bytes()));
    }
  }
}

}  // namespace

void RunMove(const MoveStep& step, const ThreadPool& threads) {
  const int64_t parts = q4nx::CeilDiv(step.counts[1], kTogether);
  const int64_t runs = std::min(step.counts[1], kTogether) * step.counts[2];
  const int64_t item_ns = std::max(runs / 2, CopyNs(runs * step.run));
  threads.ParallelFor(step.counts[0] * parts, item_ns, [&](int64_t i) {
    const int64_t outer = i / parts, first = i % parts * kTogether;
    const int64_t last = std::min(first + kTogether, step.counts[1]);
    switch (step.run) {
      case 2:
        return MoveRuns(step, outer, first, last, [] { return int64_t{2}; });
      case 4:
        return MoveRuns(step, outer, first, last, [] { return int64_t{4}; });
      default:
        return MoveRuns(step, outer, first, last, [&] { return step.run; });
    }
  });
}

}  // namespace ort_aie::host
