#include "targets/npu/schedule/vectors.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "q4nx/bfloat16.h"
#include "q4nx/layout.h"
#include "targets/host/work.h"
#include "targets/npu/conversions.h"
#include "targets/npu/schedule/designs.h"
#include "targets/trace.h"

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kRmsMultiple = 128;  // elements that `rms_norm` moves at a time
static_assert(q4nx::kBlockCols % kRmsMultiple == 0);

size_t RowBytes(int64_t k, DataType type) { return static_cast<size_t>(k) * SizeOf(type); }

constexpr int64_t kOneRow = 0;  // in place of a number of rows: a token's row, on its overlay

// sum = x + residual, if there is one, and y = its norm * weight. Rows have n elements, and zeros
// up to whole pieces. Several rows are whole blocks' columns apart.
struct RmsNorm {
  int64_t rows = kOneRow, n;
  Design several = {};  // the overlay for several rows
  npu::BufferView x;
  std::optional<npu::BufferView> residual, sum;
  npu::BufferView weight, y;
  float epsilon;
};

void Invoke(Batch& batch, const RmsNorm& norm) {
  const std::map<std::string, npu::BufferView> arguments = {
      {"x", norm.x},
      {"residual", norm.residual.value_or(norm.x)},  // has no bytes if there is none
      {"weight", norm.weight},
      {"sum", norm.sum.value_or(norm.x)},
      {"y", norm.y}};
  std::map<std::string, int64_t> parameters = {
      {"n", norm.n}, {"residual", norm.residual ? 1 : 0}, {"eps_bits", FloatBits(norm.epsilon)}};
  if (norm.rows == kOneRow) {
    return batch.Invoke(kDecode, {"rms_norm", parameters, arguments});
  }
  parameters.insert({{"M", norm.rows}, {"K", q4nx::PaddedCols(norm.n)}, {"norm", 1}});
  batch.Invoke(norm.several, {"add_norm", parameters, arguments});
}

// Only sum = x + residual. For one row, the norm is a by-product, with a finite weight.
void InvokeSum(Batch& batch, int64_t rows, int64_t n, npu::BufferView x, npu::BufferView residual,
               npu::BufferView sum, Design several = {}) {
  if (rows != kOneRow) {
    return batch.Invoke(
        several, {"add_norm",
                  {{"M", rows},
                   {"K", q4nx::PaddedCols(n)},
                   {"n", n},
                   {"residual", 1},
                   {"norm", 0},
                   {"eps_bits", 0}},
                  {{"x", x}, {"residual", residual}, {"weight", x}, {"sum", sum}, {"y", sum}}});
  }
  Invoke(batch, {.n = n,
                 .x = x,
                 .residual = residual,
                 .sum = sum,
                 .weight = residual,
                 .y = batch.memory.Scratch(q4nx::PaddedCols(n)),
                 .epsilon = 1});
}

// y = x * weight is a norm with an epsilon so large that 1 / sqrt(mean of squares + epsilon) is
// 2^-32 for any x of a model: for |x| up to 2^24 this holds within 2^-17, which is small compared
// with the rounding of y to bfloat16. The weight compensates for the factor.
constexpr float kProductEpsilon = 0x1p64f, kProductScale = 0x1p32f;

void InvokeProduct(Batch& batch, int64_t n, npu::BufferView x, npu::BufferView weight,
                   npu::BufferView y) {
  Invoke(batch, {.n = n,
                 .x = x,
                 .residual = std::nullopt,
                 .sum = std::nullopt,
                 .weight = weight,
                 .y = y,
                 .epsilon = kProductEpsilon});
}

// n elements of the host, or one element n times, times `scale`, with zeros up to whole blocks'
// columns.
npu::BufferView Upload(Batch& batch, const void* tensor, DataType type, int64_t n, bool scalar,
                       float scale) {
  return batch.Input(q4nx::PaddedCols(n), [=](uint16_t* y) {
    const host::Kernels& kernels = host::SelectedKernels();
    float* x = host::Scratch<float>(host::Purpose::kTile, n);
    host::ToFloat(kernels, type, tensor, scalar ? 1 : n, x);
    if (scalar) std::fill(x, x + n, x[0]);
    for (int64_t i = 0; i < n; ++i) x[i] *= scale;
    kernels.float_to_bfloat16(x, n, y);
  });
}

// The same number n times.
npu::BufferView Constant(Batch& batch, int64_t n, float value) {
  return batch.Input(q4nx::PaddedCols(n),
                     [=](uint16_t* y) { std::fill(y, y + n, FloatToBfloat16(value)); });
}

}  // namespace

RowInput::RowInput(Batch& batch, bool vectors, const Row& row, Design several)
    : batch_(batch),
      vectors_(vectors),
      several_(several),
      row_(row),
      padded_k_(q4nx::PaddedCols(row.k)),
      padded_(row.room() * padded_k_),
      a_(batch.tensors.Find(row.a, RowBytes(row.rows * row.k, row.type))),
      skip_(batch.tensors.Find(row.skip, RowBytes(row.rows * row.k, row.type))) {}

bool RowInput::Ready() const {
  if (a_.later || skip_.later ||
      !batch_.tensors.OnHost(row_.norm_weight, RowBytes(row_.k, row_.type))) {
    return false;
  }
  // Tensors on the device are used in place, in whole pieces, and by operators there.
  const bool operators = row_.norm_weight != nullptr || row_.skip != nullptr;
  int64_t pieces = RoundUp(row_.k, operators ? kRmsMultiple : q4nx::kBlockCols);
  if (row_.least_rows > 1) pieces = padded_;
  for (const BatchTensors::Source& source : {a_, skip_}) {
    if (!source.view) continue;
    if (source.room < pieces || (operators && !vectors_)) return false;
    if (row_.least_rows > 1 && row_.k != padded_k_) return false;  // rows are closer together there
  }
  return true;
}

npu::BufferView RowInput::Upload(std::function<FillRow()> prepare) {
  return batch_.Input(padded_, [&threads = batch_.threads(), rows = row_.rows, k = row_.k,
                                padded_k = padded_k_, prepare = std::move(prepare)](uint16_t* y) {
    const TraceSpan traced("host", "activations");
    const FillRow fill = prepare();
    threads.ParallelFor(rows, host::PassNs(k), [&](int64_t row) { fill(row, y + row * padded_k); });
  });
}

npu::BufferView RowInput::NormWeight() {
  return batch_.Input(padded_k_, [row = row_](uint16_t* y) {
    ToBfloat16(host::SelectedKernels(), row.type, row.norm_weight, row.k, y);
  });
}

npu::BufferView RowInput::Tensor(const void* tensor) {
  return Upload([tensor, type = row_.type, k = row_.k]() -> FillRow {
    return [=](int64_t row, uint16_t* y) {
      ToBfloat16(host::SelectedKernels(), type, Advance(tensor, type, row * k), k, y);
    };
  });
}

namespace {

void LoadSum(const host::Kernels& kernels, const Row& row, int64_t i, float* x) {
  host::ToFloat(kernels, row.type, Advance(row.a, row.type, i * row.k), row.k, x);
  if (row.skip == nullptr) return;
  float* skip = host::Scratch<float>(host::Purpose::kSkip, row.k);
  host::ToFloat(kernels, row.type, Advance(row.skip, row.type, i * row.k), row.k, skip);
  kernels.add(x, skip, row.k, x);
}

}  // namespace

npu::BufferView RowInput::FromHost(bool normalise) {
  if (row_.skip == nullptr && !normalise) return Tensor(row_.a);
  return Upload([row = row_, normalise]() -> FillRow {
    const auto& kernels = host::SelectedKernels();
    const float* weight = nullptr;
    if (normalise) {
      float* floats = host::Scratch<float>(host::Purpose::kNormWeight, row.k);
      host::ToFloat(kernels, row.type, row.norm_weight, row.k, floats);
      weight = floats;
    }
    return [&kernels, row, weight](int64_t i, uint16_t* y) {
      float* x = host::Scratch<float>(host::Purpose::kRow, row.k);
      LoadSum(kernels, row, i, x);
      if (weight != nullptr) kernels.rms_norm(weight, row.k, row.epsilon, x);
      kernels.float_to_bfloat16(x, row.k, y);
    };
  });
}

// Stores the sum of rows that the host has. If the host reads it, it is computed from these rows,
// which have more digits than the device's.
void RowInput::StoreSumAfter(std::optional<npu::BufferView> x) {
  if (row_.sum == nullptr) return;
  const auto store = [&threads = batch_.threads(), row = row_] {
    const host::Kernels& kernels = host::SelectedKernels();
    threads.ParallelFor(row.rows, host::PassNs(row.k), [&](int64_t i) {
      float* sum = host::Scratch<float>(host::Purpose::kRow, row.k);
      LoadSum(kernels, row, i, sum);
      host::FromFloat(kernels, row.type, sum, row.k, Advance(row.sum, row.type, i * row.k));
    });
  };
  const int64_t elements = row_.rows * row_.k;
  // Rows that are apart on the device are not one piece.
  if (x && (row_.rows == 1 || row_.k == padded_k_)) {
    return batch_.Alias(row_.sum, elements, row_.type, *x, padded_, store);
  }
  batch_.WritesLater(row_.sum, elements, row_.type);
  batch_.Then([store](const Batch::Results&) { store(); });
}

npu::BufferView RowInput::Make(std::optional<npu::BufferView> to) {
  const bool on_device = a_.view || skip_.view, both = on_device && row_.skip != nullptr;
  const bool norm = row_.norm_weight != nullptr;
  if (!vectors_ && norm) {
    StoreSumAfter(std::nullopt);
    return FromHost(true);
  }
  const InputRows::Key key{row_.a, row_.skip, row_.norm_weight, row_.rows,
                           row_.k, row_.type, row_.epsilon};
  if (const InputRows* made = to ? nullptr : batch_.tensors.FindRows(key)) {
    if (both && row_.sum != nullptr) {
      batch_.Alias(row_.sum, row_.rows * row_.k, row_.type, made->x, padded_);
    } else if (row_.skip != nullptr && !both) {
      StoreSumAfter(made->x);
    }
    return made->y;
  }
  // `rms_norm` writes whole pieces; the zeros after them come from the host.
  const bool several = row_.least_rows > 1;
  const auto place = [&] {
    return several ? batch_.memory.Scratch(padded_) : batch_.Input(padded_);
  };
  npu::BufferView x;
  if (both) {  // another step may write this sum
    x = several ? batch_.OutputRows(row_.sum, row_.rows * row_.k, row_.type, padded_)
                : batch_.Output(row_.sum, row_.k, row_.type);
  } else if (on_device) {
    x = *a_.view;
  } else {
    x = FromHost(false);
    if (row_.skip != nullptr) StoreSumAfter(x);
  }
  const npu::BufferView left = !both ? x : a_.view ? *a_.view : Tensor(row_.a);
  const npu::BufferView right = !both ? x : skip_.view ? *skip_.view : Tensor(row_.skip);
  npu::BufferView y = x;
  if (norm) {
    y = to ? *to : place();
    RmsNorm invocation{.rows = several ? row_.rows : kOneRow,
                       .n = row_.k,
                       .several = several_,
                       .x = left,
                       .residual = std::nullopt,
                       .sum = std::nullopt,
                       .weight = NormWeight(),
                       .y = y,
                       .epsilon = row_.epsilon};
    if (both) {
      invocation.residual = right;
      invocation.sum = x;
    }
    Invoke(batch_, invocation);
  } else if (both) {
    InvokeSum(batch_, several ? row_.rows : kOneRow, row_.k, left, right, x, several_);
  }
  if (!to) batch_.tensors.KeepRows({key, x, y});
  return y;
}

bool HasRowOperators(const DeviceFacts& facts, int64_t k) {
  return k <= kRowOperatorsMaxK && HasSequences(facts, facts.prompts.gemm, {"add_norm", "gate"});
}

bool AppendNorm(const DeviceFacts& facts, Batch& batch, const NormStep& step) {
  if (step.rows > 1) {
    const int64_t elements = step.rows * step.k;
    RowInput rows(batch, HasRowOperators(facts, step.k),
                  {step.a, step.skip, step.weight, step.sum, step.rows, step.k, step.type,
                   step.epsilon, kGemmLeastRows},
                  facts.prompts.gemm);
    if (!rows.Ready()) return false;
    rows.Make(batch.OutputRows(step.y, elements, step.type,
                               std::max(step.rows, kGemmLeastRows) * step.k));
    return true;
  }
  RowInput row(
      batch, true,
      {step.a, step.skip, step.weight, step.sum, step.rows, step.k, step.type, step.epsilon});
  if (!row.Ready()) return false;
  row.Make(batch.Output(step.y, step.k, step.type));
  return true;
}

bool AppendElementwise(const DeviceFacts& facts, Batch& batch, const ElementwiseStep& step) {
  using Operand = ElementwiseStep::Operand;
  if (step.rows > 1) {
    if (step.function != Function::kAdd || step.b_is != Operand::kTensor) return false;
    // A sum without a norm after it.
    RowInput rows(
        batch, HasRowOperators(facts, step.k),
        {step.a, step.b, nullptr, step.y, step.rows, step.k, step.type, 0, kGemmLeastRows},
        facts.prompts.gemm);
    if (!rows.Ready()) return false;
    rows.Make();
    return true;
  }
  const int64_t n = step.k;
  const bool scalar = step.b_is == Operand::kScalar;
  const bool binary = step.function == Function::kAdd || step.function == Function::kMultiply;
  const BatchTensors::Source a = batch.tensors.Find(step.a, RowBytes(n, step.type));
  const BatchTensors::Source b =
      !binary ? BatchTensors::Source{}
              : batch.tensors.Find(step.b, RowBytes(scalar ? 1 : n, step.type));
  const int64_t pieces = RoundUp(n, kRmsMultiple);
  for (const BatchTensors::Source& source : {a, b}) {
    if (source.later || (source.view && source.room < pieces)) return false;
  }
  if (scalar && b.view) return false;  // the value would have to be repeated there

  const auto upload = [&](const BatchTensors::Source& source, const void* tensor, bool repeated,
                          float scale) {
    return source.view ? *source.view : Upload(batch, tensor, step.type, n, repeated, scale);
  };
  const npu::BufferView y = batch.Output(step.y, n, step.type);
  if (step.function == Function::kAdd) {
    InvokeSum(batch, kOneRow, n, upload(a, step.a, false, 1), upload(b, step.b, scalar, 1), y);
  } else if (step.function == Function::kMultiply) {
    const npu::BufferView x = upload(a, step.a, false, 1);
    npu::BufferView weight = upload(b, step.b, scalar, kProductScale);
    if (b.view) {  // the device applies what the host applies to its own
      const npu::BufferView scaled = batch.memory.Scratch(q4nx::PaddedCols(n));
      InvokeProduct(batch, n, weight, Constant(batch, n, kProductScale * kProductScale), scaled);
      weight = scaled;
    }
    InvokeProduct(batch, n, x, weight, y);
  } else {
    // A gate with ones as the other factor. Adding nothing with `sum` copies x to its place.
    const int64_t width = std::max(pieces, kGluLeast);
    const npu::BufferView both = batch.Input(2 * width, [width](uint16_t* to) {
      std::fill(to + width, to + 2 * width, FloatToBfloat16(1));
    });
    const npu::BufferView nothing = batch.Input(pieces);
    InvokeSum(batch, kOneRow, n, upload(a, step.a, false, 1), nothing, both);
    batch.Invoke(kDecode, {"glu",
                           {{"n", width}, {"kind", step.function == Function::kSilu ? 0 : 1}},
                           {{"gate_up", both}, {"y", y}}});
  }
  return true;
}

bool AppendCast(Batch& batch, const CastStep& step) {
  const BatchTensors::Source x = batch.tensors.Find(step.x, RowBytes(step.count, step.from));
  if (!x.view || !BatchMemory::IsResult(*x.view)) return false;
  batch.Alias(step.y, step.count, step.to, *x.view, x.room);
  return true;
}

bool AppendSelection(Batch& batch, const GatherStep& step) {
  if (!step.is_table || step.count != 1 || step.index_type != DataType::kInt64) return false;
  int64_t index = *static_cast<const int64_t*>(step.indices);
  if (index < 0) index += step.n;
  if (index < 0 || index >= step.n) return false;
  const BatchTensors::Source row =
      batch.tensors.Find(Advance(static_cast<const void*>(step.weights), step.type, index * step.k),
                         RowBytes(step.k, step.type));
  if (!row.view || !BatchMemory::IsResult(*row.view)) return false;
  batch.Alias(step.y, step.k, step.type, *row.view, step.k);
  return true;
}

}  // namespace ort_aie::npu_target
