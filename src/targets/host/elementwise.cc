// Sums, products, functions and conversions, element by element.
#include <algorithm>
#include <cstring>

#include "q4nx/layout.h"
#include "targets/host/host_target.h"
#include "targets/host/scratch.h"
#include "targets/host/work.h"

namespace ort_aie::host {
namespace {

using q4nx::CeilDiv;

// Elements that are worked on at a time: their float32 forms stay in L1.
constexpr int64_t kPiece = 1024;

// Calls work(row, column, count) for pieces of (rows, k), none of which has parts of two rows.
template <typename Work>
void ForEachPiece(int64_t rows, int64_t k, int64_t (*work_ns)(int64_t elements),
                  const ThreadPool& threads, const Work& work) {
  const int64_t pieces = CeilDiv(k, kPiece);
  const int64_t item_ns = std::max<int64_t>(1, work_ns(std::min(k, kPiece)));
  threads.ParallelFor(rows * pieces, item_ns, [&](int64_t i) {
    const int64_t column = i % pieces * kPiece;
    work(i / pieces, column, std::min(kPiece, k - column));
  });
}

constexpr bool IsBinary(Function function) {
  return function == Function::kAdd || function == Function::kMultiply;
}

void Apply(const Kernels& kernels, Function function, const float* a, const float* b, int64_t n,
           float* y) {
  switch (function) {
    case Function::kAdd:
      return kernels.add(a, b, n, y);
    case Function::kMultiply:
      return kernels.multiply(a, b, n, y);
    case Function::kSigmoid:
      return kernels.sigmoid(a, n, y);
    case Function::kSilu:
      return kernels.silu(a, n, y);
    case Function::kGelu:
      return kernels.gelu(a, n, y);
    case Function::kGeluTanh:
      return kernels.gelu_tanh(a, n, y);
  }
}

// A row of b, or as much of its one value as a piece has elements; null where each element of a has
// one of its own.
const float* CommonOperand(const ElementwiseStep& step, const Kernels& kernels) {
  if (step.b_is == ElementwiseStep::Operand::kRow) {
    return Floats(kernels, step.type, step.b, step.k, Purpose::kOperand);
  }
  if (step.b_is != ElementwiseStep::Operand::kScalar) return nullptr;
  float value = 0;
  ToFloat(kernels, step.type, step.b, 1, &value);
  const int64_t count = std::min(kPiece, step.rows * step.k);
  float* values = Scratch<float>(Purpose::kOperand, count);
  std::fill_n(values, count, value);
  return values;
}

}  // namespace

void RunElementwise(const ElementwiseStep& step, const Kernels& kernels,
                    const ThreadPool& threads) {
  using enum ElementwiseStep::Operand;
  const bool binary = IsBinary(step.function);
  const float* common = binary ? CommonOperand(step, kernels) : nullptr;
  // Rows matter to a row of b alone.
  const bool by_row = binary && step.b_is == kRow;
  const int64_t rows = by_row ? step.rows : 1, k = by_row ? step.k : step.rows * step.k;
  const auto work_ns = binary ? SumNs : FunctionNs;
  ForEachPiece(rows, k, work_ns, threads, [&](int64_t row, int64_t column, int64_t count) {
    const int64_t first = row * k + column;
    const auto load = [&](const void* from, Purpose purpose) {
      return Floats(kernels, step.type, Advance(from, step.type, first), count, purpose);
    };
    const float* a = load(step.a, Purpose::kRow);
    const float* b = by_row              ? common + column
                     : common != nullptr ? common
                     : binary            ? load(step.b, Purpose::kSkip)
                                         : nullptr;
    void* y = Advance(step.y, step.type, first);
    if (step.type == DataType::kFloat32) {
      Apply(kernels, step.function, a, b, count, static_cast<float*>(y));
    } else {
      float* result = Scratch<float>(Purpose::kTile, count);
      Apply(kernels, step.function, a, b, count, result);
      FromFloat(kernels, step.type, result, count, y);
    }
  });
}

void RunCast(const CastStep& step, const Kernels& kernels, const ThreadPool& threads) {
  ForEachPiece(1, step.count, SumNs, threads, [&](int64_t, int64_t first, int64_t count) {
    const void* x = Advance(step.x, step.from, first);
    void* y = Advance(step.y, step.to, first);
    if (step.from == step.to) {
      std::memcpy(y, x, static_cast<size_t>(BytesOf(step.to, count)));
    } else if (step.to == DataType::kFloat32) {
      ToFloat(kernels, step.from, x, count, static_cast<float*>(y));
    } else {
      FromFloat(kernels, step.to, Floats(kernels, step.from, x, count, Purpose::kRow), count, y);
    }
  });
}

}  // namespace ort_aie::host
