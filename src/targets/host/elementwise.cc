// Sums, products, functions and conversions, element by element.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "q4nx/layout.h"
#include "targets/host/host_target.h"
#include "targets/host/scratch.h"
#include "targets/host/work.h"

namespace ort_aie::host {
namespace {

using q4nx::CeilDiv;

// Elements processed at a time. Elements of other types are widened to float32 copies, which stay
// in L1.
constexpr int64_t kPiece = 1024, kFloatPiece = 4096;

// Calls work(row, column, count) for pieces of (rows, k). A piece never crosses a row.
template <typename Work>
void ForEachPiece(int64_t rows, int64_t k, int64_t piece, int64_t (*work_ns)(int64_t elements),
                  const ThreadPool& threads, const Work& work) {
  const int64_t pieces = CeilDiv(k, piece);
  const int64_t item_ns = std::max<int64_t>(1, work_ns(k) / pieces);
  threads.ParallelFor(rows * pieces, item_ns, [&](int64_t i) {
    const int64_t column = i % pieces * piece;
    work(i / pieces, column, std::min(piece, k - column));
  });
}

void ApplyValue(const Kernels& kernels, Function function, const float* a, float value, int64_t n,
                float* y) {
  (function == Function::kAdd ? kernels.add_value : kernels.multiply_value)(a, value, n, y);
}

void Apply(const Kernels& kernels, Function function, const float* a, const float* b, int64_t n,
           float* y) {
  switch (function) {
    case Function::kAdd:
      return kernels.add(a, b, n, y);
    case Function::kMultiply:
      return kernels.multiply(a, b, n, y);
    case Function::kSwiglu:
      if (a != y) std::memcpy(y, a, static_cast<size_t>(n) * sizeof(float));
      return kernels.gate_silu(b, n, y);
    case Function::kSigmoid:
      return kernels.sigmoid(a, n, y);
    case Function::kSilu:
      return kernels.silu(a, n, y);
    case Function::kGelu:
      return kernels.gelu(a, n, y);
    case Function::kGeluTanh:
      return kernels.gelu_tanh(a, n, y);
    case Function::kUnit:
      return;  // not element by element: RunUnit
  }
}

// In the scale of the row's largest element, so that no square overflows or is lost.
void RunUnit(const ElementwiseStep& step, const Kernels& kernels, const ThreadPool& threads) {
  threads.ParallelFor(step.rows, FunctionNs(step.k), [&](int64_t row) {
    const void* from = Advance(step.a, step.type, row * step.k);
    const float* a = Floats(kernels, step.type, from, step.k, Purpose::kRow);
    float* y = Scratch<float>(Purpose::kTile, step.k);
    float largest = 0, sum = 0;
    for (int64_t i = 0; i < step.k; ++i) {
      // A NaN is kept: nothing compares to it.
      if (!(std::fabs(a[i]) <= largest)) largest = std::fabs(a[i]);
    }
    const float scale = largest == 0 || !std::isfinite(largest) ? 1 : largest;
    for (int64_t i = 0; i < step.k; ++i) {
      y[i] = a[i] / scale;
      sum += y[i] * y[i];
    }
    if (largest != 0) kernels.multiply_value(y, 1 / std::sqrt(sum), step.k, y);
    FromFloat(kernels, step.type, y, step.k, Advance(step.y, step.type, row * step.k));
  });
}

// For (rows, k): apply(a, column, n, y) computes n elements of a row, from that column on.
template <typename F>
void ForEachFloat(const ElementwiseStep& step, int64_t rows, int64_t k, const Kernels& kernels,
                  const ThreadPool& threads, const F& apply) {
  const bool is_float = step.type == DataType::kFloat32;
  const bool is_sum = step.function == Function::kAdd || step.function == Function::kMultiply;
  const auto work_ns = is_sum ? SumNs : FunctionNs;
  const auto work = [&](int64_t row, int64_t column, int64_t n) {
    const int64_t first = row * k + column;
    const void* from = Advance(step.a, step.type, first);
    void* to = Advance(step.y, step.type, first);
    const float* a = Floats(kernels, step.type, from, n, Purpose::kRow);
    float* y = is_float ? static_cast<float*>(to) : Scratch<float>(Purpose::kTile, n);
    apply(a, column, n, y);
    if (!is_float) FromFloat(kernels, step.type, y, n, to);
  };
  ForEachPiece(rows, k, is_float ? kFloatPiece : kPiece, work_ns, threads, work);
}

}  // namespace

void RunElementwise(const ElementwiseStep& step, const Kernels& kernels,
                    const ThreadPool& threads) {
  using enum ElementwiseStep::Operand;
  const Function function = step.function;
  if (function == Function::kUnit) return RunUnit(step, kernels, threads);
  const int64_t count = step.rows * step.k;
  const auto flat = [&](const auto& apply) {  // if rows do not matter
    ForEachFloat(step, 1, count, kernels, threads, apply);
  };
  if (!IsBinary(function)) {
    flat([&](const float* a, int64_t, int64_t n, float* y) {
      Apply(kernels, function, a, nullptr, n, y);
    });
  } else if (step.b_is == kTensor) {
    flat([&](const float* a, int64_t column, int64_t n, float* y) {
      const void* b = Advance(step.b, step.type, column);
      Apply(kernels, function, a, Floats(kernels, step.type, b, n, Purpose::kSkip), n, y);
    });
  } else if (step.b_is == kScalar) {
    float value = 0;
    ToFloat(kernels, step.type, step.b, 1, &value);
    flat([&](const float* a, int64_t, int64_t n, float* y) {
      ApplyValue(kernels, function, a, value, n, y);
    });
  } else {
    const float* b = Floats(kernels, step.type, step.b, step.k, Purpose::kOperand);
    ForEachFloat(step, step.rows, step.k, kernels, threads,
                 [&](const float* a, int64_t column, int64_t n, float* y) {
                   Apply(kernels, function, a, b + column, n, y);
                 });
  }
}

void RunCast(const CastStep& step, const Kernels& kernels, const ThreadPool& threads) {
  ForEachPiece(1, step.count, kFloatPiece, SumNs, threads,
               [&](int64_t, int64_t first, int64_t count) {
                 const void* x = Advance(step.x, step.from, first);
                 void* y = Advance(step.y, step.to, first);
                 if (step.from == step.to) {
                   std::memcpy(y, x, static_cast<size_t>(BytesOf(step.to, count)));
                 } else if (step.to == DataType::kFloat32) {
                   ToFloat(kernels, step.from, x, count, static_cast<float*>(y));
                 } else {
                   FromFloat(kernels, step.to, Floats(kernels, step.from, x, count, Purpose::kRow),
                             count, y);
                 }
               });
}

}  // namespace ort_aie::host
