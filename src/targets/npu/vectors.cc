#include "targets/npu/vectors.h"

#include <algorithm>
#include <cmath>

#include "q4nx/bfloat16.h"
#include "q4nx/layout.h"
#include "targets/npu/conversions.h"
#include "targets/npu/designs.h"

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kRmsMultiple = 128;  // elements that `rms_norm` moves at a time
static_assert(q4nx::kBlockCols % kRmsMultiple == 0);

size_t RowBytes(int64_t k, DataType type) { return static_cast<size_t>(k) * SizeOf(type); }

// sum = x + residual, if that is given, and y = its norm * weight; rows of n elements, and zeros up
// to whole pieces.
struct RmsNorm {
  int64_t n;
  npu::BufferView x;
  std::optional<npu::BufferView> residual, sum;
  npu::BufferView weight, y;
  float epsilon;
};

void Invoke(Batch& batch, const RmsNorm& norm) {
  batch.Invoke({"rms_norm",
                {{"n", norm.n},
                 {"rows", 1},
                 {"residual", norm.residual ? 1 : 0},
                 {"eps_bits", FloatBits(norm.epsilon)}},
                {{"x", norm.x},
                 {"residual", norm.residual.value_or(norm.x)},  // of no bytes without one
                 {"weight", norm.weight},
                 {"sum", norm.sum.value_or(norm.x)},
                 {"y", norm.y}}});
}

// sum = x + residual alone. The norm is a by-product, by a weight that is finite.
void InvokeSum(Batch& batch, int64_t n, npu::BufferView x, npu::BufferView residual,
               npu::BufferView sum) {
  Invoke(batch, {.n = n,
                 .x = x,
                 .residual = residual,
                 .sum = sum,
                 .weight = residual,
                 .y = batch.Scratch(q4nx::PaddedCols(n)),
                 .epsilon = 1});
}

// y = x * weight is a norm whose epsilon is so large that 1 / sqrt(mean of squares + epsilon) is
// 2^-32 for whatever x a model has: for |x| up to 2^24 it is so within 2^-17, a small part of the
// rounding of y to bfloat16. The weight makes up for it.
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

// n elements of the host's, or one n times, times `scale`, with zeros up to whole blocks' columns.
npu::BufferView Upload(Engine& engine, Batch& batch, const void* tensor, DataType type, int64_t n,
                       bool scalar, float scale) {
  return batch.Input(q4nx::PaddedCols(n), [&](uint16_t* y) {
    float* x = host::Scratch<float>(host::Purpose::kTile, n);
    host::ToFloat(engine.kernels(), type, tensor, scalar ? 1 : n, x);
    if (scalar) std::fill(x, x + n, x[0]);
    for (int64_t i = 0; i < n; ++i) x[i] *= scale;
    engine.kernels().float_to_bfloat16(x, n, y);
  });
}

// The same number in all of n elements.
npu::BufferView Constant(Batch& batch, int64_t n, float value) {
  return batch.Input(q4nx::PaddedCols(n),
                     [&](uint16_t* y) { std::fill(y, y + n, FloatToBfloat16(value)); });
}

}  // namespace

RowInput::RowInput(Engine& engine, Batch& batch, bool vectors, const Row& row)
    : engine_(engine),
      batch_(batch),
      vectors_(vectors),
      row_(row),
      padded_(q4nx::PaddedCols(row.k)),
      a_(batch.Find(row.a, RowBytes(row.k, row.type))),
      skip_(batch.Find(row.skip, RowBytes(row.k, row.type))) {}

bool RowInput::Ready() const {
  if (a_.later || skip_.later || !batch_.OnHost(row_.norm_weight, RowBytes(row_.k, row_.type))) {
    return false;
  }
  // What is on the device is used as it lies there, in whole pieces, and by operators there.
  const bool operators = row_.norm_weight != nullptr || row_.skip != nullptr;
  const int64_t pieces = RoundUp(row_.k, operators ? kRmsMultiple : q4nx::kBlockCols);
  for (const Batch::Source& source : {a_, skip_}) {
    if (source.view && (source.room < pieces || (operators && !vectors_))) return false;
  }
  return true;
}

npu::BufferView RowInput::Tensor(const void* tensor) {
  return batch_.Input(
      padded_, [&](uint16_t* y) { ToBfloat16(engine_.kernels(), row_.type, tensor, row_.k, y); });
}

namespace {

void LoadSum(const host::Kernels& kernels, const Row& row, float* x) {
  host::ToFloat(kernels, row.type, row.a, row.k, x);
  if (row.skip == nullptr) return;
  float* skip = host::Scratch<float>(host::Purpose::kSkip, row.k);
  host::ToFloat(kernels, row.type, row.skip, row.k, skip);
  kernels.add(x, skip, row.k, x);
}

}  // namespace

npu::BufferView RowInput::FromHost(bool normalise) {
  if (row_.skip == nullptr && !normalise) return Tensor(row_.a);
  const auto& kernels = engine_.kernels();
  return batch_.Input(padded_, [&](uint16_t* y) {
    float* x = host::Scratch<float>(host::Purpose::kRow, row_.k);
    LoadSum(kernels, row_, x);
    if (normalise) {
      float* weight = host::Scratch<float>(host::Purpose::kNormWeight, row_.k);
      host::ToFloat(kernels, row_.type, row_.norm_weight, row_.k, weight);
      kernels.rms_norm(weight, row_.k, row_.epsilon, x);
    }
    kernels.float_to_bfloat16(x, row_.k, y);
  });
}

// The sum of rows that the host has: where it is read there, from those, which have more digits
// than the device's.
void RowInput::StoreSumAfter(std::optional<npu::BufferView> x) {
  if (row_.sum == nullptr) return;
  const auto store = [&engine = engine_, row = row_] {
    float* sum = host::Scratch<float>(host::Purpose::kRow, row.k);
    LoadSum(engine.kernels(), row, sum);
    host::FromFloat(engine.kernels(), row.type, sum, row.k, row.sum);
  };
  if (x) return batch_.Alias(row_.sum, row_.k, row_.type, *x, padded_, store);
  batch_.Writes(row_.sum, row_.k, row_.type, std::nullopt);
  batch_.Then([store](const Batch::Results&) { store(); });
}

npu::BufferView RowInput::Make(std::optional<npu::BufferView> to) {
  const bool on_device = a_.view || skip_.view, both = on_device && row_.skip != nullptr;
  const bool norm = row_.norm_weight != nullptr;
  if (!vectors_ && norm) {
    StoreSumAfter(std::nullopt);
    return FromHost(true);
  }
  const MadeRow::Key key{row_.a, row_.skip, row_.norm_weight, row_.k, row_.type, row_.epsilon};
  if (const MadeRow* made = to ? nullptr : batch_.FindRow(key)) {
    if (both && row_.sum != nullptr) {
      batch_.Alias(row_.sum, row_.k, row_.type, made->x, padded_);
    } else if (row_.skip != nullptr && !both) {
      StoreSumAfter(made->x);
    }
    return made->y;
  }
  const auto zeros = [&] { return batch_.Input(padded_, [](uint16_t*) {}); };
  npu::BufferView x;
  if (both) {
    x = batch_.Output(row_.sum, row_.k, row_.type);  // another step may give this sum
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
    // `rms_norm` gives whole pieces; the zeros beyond come from the host.
    y = to ? *to : zeros();
    RmsNorm invocation{.n = row_.k,
                       .x = left,
                       .residual = std::nullopt,
                       .sum = std::nullopt,
                       .weight = Tensor(row_.norm_weight),
                       .y = y,
                       .epsilon = row_.epsilon};
    if (both) {
      invocation.residual = right;
      invocation.sum = x;
    }
    Invoke(batch_, invocation);
  } else if (both) {
    InvokeSum(batch_, row_.k, left, right, x);
  }
  if (!to) batch_.KeepRow({key, x, y});
  return y;
}

bool AppendNorm(Engine& engine, Batch& batch, const NormStep& step) {
  RowInput row(engine, batch, true,
               {step.a, step.skip, step.weight, step.sum, step.k, step.type, step.epsilon});
  if (!row.Ready()) return false;
  row.Make(batch.Output(step.y, step.k, step.type));
  return true;
}

bool AppendElementwise(Engine& engine, Batch& batch, const ElementwiseStep& step) {
  using Operand = ElementwiseStep::Operand;
  const int64_t n = step.k;
  const bool scalar = step.b_is == Operand::kScalar;
  const bool binary = step.function == Function::kAdd || step.function == Function::kMultiply;
  const Batch::Source a = batch.Find(step.a, RowBytes(n, step.type));
  const Batch::Source b =
      !binary ? Batch::Source{} : batch.Find(step.b, RowBytes(scalar ? 1 : n, step.type));
  const int64_t pieces = RoundUp(n, kRmsMultiple);
  for (const Batch::Source& source : {a, b}) {
    if (source.later || (source.view && source.room < pieces)) return false;
  }
  if (scalar && b.view) return false;  // it would have to be repeated there

  const auto upload = [&](const Batch::Source& source, const void* tensor, bool repeated,
                          float scale) {
    return source.view ? *source.view
                       : Upload(engine, batch, tensor, step.type, n, repeated, scale);
  };
  const npu::BufferView y = batch.Output(step.y, n, step.type);
  if (step.function == Function::kAdd) {
    InvokeSum(batch, n, upload(a, step.a, false, 1), upload(b, step.b, scalar, 1), y);
  } else if (step.function == Function::kMultiply) {
    const npu::BufferView x = upload(a, step.a, false, 1);
    npu::BufferView weight = upload(b, step.b, scalar, kProductScale);
    if (b.view) {  // it gets there what the host gives its own
      const npu::BufferView scaled = batch.Scratch(q4nx::PaddedCols(n));
      InvokeProduct(batch, n, weight, Constant(batch, n, kProductScale * kProductScale), scaled);
      weight = scaled;
    }
    InvokeProduct(batch, n, x, weight, y);
  } else {
    // A gate in front of ones. The sum with nothing brings x to its place.
    const int64_t width = std::max(pieces, kGluLeast);
    const npu::BufferView both = batch.Input(2 * width, [&](uint16_t* to) {
      std::fill(to + width, to + 2 * width, FloatToBfloat16(1));
    });
    const npu::BufferView nothing = batch.Input(pieces, [](uint16_t*) {});
    InvokeSum(batch, n, upload(a, step.a, false, 1), nothing, both);
    batch.Invoke({"glu",
                  {{"n", width}, {"rows", 1}, {"kind", step.function == Function::kSilu ? 0 : 1}},
                  {{"gate_up", both}, {"y", y}}});
  }
  return true;
}

bool AppendCast(Batch& batch, const CastStep& step) {
  const Batch::Source x = batch.Find(step.x, RowBytes(step.count, step.from));
  if (!x.view || !batch.IsResult(*x.view)) return false;
  batch.Alias(step.y, step.count, step.to, *x.view, x.room);
  return true;
}

}  // namespace ort_aie::npu_target
