#include "targets/host/streamed_rows.h"

namespace ort_aie::host {
namespace {

using q4nx::kBlockCols;
using q4nx::kGroup;
using q4nx::PaddedCols;

// n values, a multiple of 256, as floats that are bfloat16 values.
void RoundToBf16(const Kernels& kernels, const float* x, int64_t n, float* y) {
  uint16_t block[kBlockCols];
  for (int64_t i = 0; i < n; i += kBlockCols) {
    kernels.float_to_bfloat16(x + i, kBlockCols, block);
    kernels.bfloat16_to_float(block, kBlockCols, y + i);
  }
}

}  // namespace

// A row of x as float, padded with zeros to whole blocks: in `buffer`, or in place if it needs no
// change.
const float* LoadPadded(const MatMulStep& step, const Kernels& kernels, const float* norm_weight,
                        int64_t row, float* buffer) {
  const int64_t padded = PaddedCols(step.k);
  const bool as_it_is = norm_weight == nullptr && step.skip == nullptr;
  if (step.type == DataType::kFloat32 && as_it_is && padded == step.k) {
    return static_cast<const float*>(step.a) + row * step.k;
  }
  LoadRow(step, kernels, norm_weight, row, buffer);
  std::fill(buffer + step.k, buffer + padded, 0.0f);
  return buffer;
}

StreamedRows::StreamedRows(const MatMulStep& step, int64_t rows, const Kernels& kernels)
    : kernels_(kernels),
      int8_(step.numerics == Numerics::kInt8),
      lookup_(step.form.kind == WeightKind::kQ2NX),
      bytes_(step.form.kind == WeightKind::kQ8NX),
      layout_(LayoutOf(step.form, step.symmetric)),
      k_blocks_(q4nx::ColBlocks(step.k)),
      padded_(q4nx::PaddedCols(step.k)),
      groups_(padded_ / kGroup),
      table_bytes_(padded_ / q4nx::kQuad * kMaxTableBytes) {
  if (lookup_) {
    tables_ = Scratch<uint8_t>(Purpose::kActivations, rows * table_bytes_);
    scales_ = Scratch<float>(Purpose::kActivationScales, rows * groups_);
    sums_ = Scratch<float>(Purpose::kActivationSums, rows * groups_);
  } else if (int8_) {
    scales_ = Scratch<float>(Purpose::kActivationScales, rows * groups_);
    q_sums_ = Scratch<int32_t>(Purpose::kCodeSums, rows * groups_);
    codes_ = Scratch<int8_t>(Purpose::kActivationCodes, rows * padded_);
  } else {
    rounded_ = Scratch<float>(Purpose::kActivations, rows * padded_);
    sums_ = Scratch<float>(Purpose::kActivationSums, rows * groups_);
  }
}

void StreamedRows::Take(int64_t row, const float* x) const {
  if (lookup_) {
    if (!int8_) {
      float* rounded = Scratch<float>(Purpose::kSkip, padded_);
      RoundToBf16(kernels_, x, padded_, rounded);
      x = rounded;
    }
    const LookupMatvec& matvec = int8_ ? kernels_.lookup->int8 : kernels_.lookup->bf16;
    matvec.make_tables(x, groups_, tables_ + row * table_bytes_, scales_ + row * groups_,
                       sums_ + row * groups_);
  } else if (int8_) {
    kernels_.quantize_int8(x, groups_, 0, reinterpret_cast<uint8_t*>(codes_ + row * padded_),
                           scales_ + row * groups_, q_sums_ + row * groups_);
  } else {
    float* to = rounded_ + row * padded_;
    RoundToBf16(kernels_, x, padded_, to);
    kernels_.group_sums(to, groups_, sums_ + row * groups_);
  }
}

void StreamedRows::Multiply(const uint8_t* blocks, int64_t first, int64_t count, float* y,
                            int64_t ldy) const {
  const auto one_by_one = [&](const auto& multiply) {
    for (int64_t i = 0; i < count; ++i) multiply(first + i, y + i * ldy);
  };
  if (lookup_) {
    const LookupMatvec& matvec = int8_ ? kernels_.lookup->int8 : kernels_.lookup->bf16;
    one_by_one([&](int64_t row, float* to) {
      matvec.multiply(blocks, k_blocks_, tables_ + row * table_bytes_, scales_ + row * groups_,
                      sums_ + row * groups_, layout_, to);
    });
  } else if (int8_) {
    const int8_t* codes = codes_ + first * padded_;
    const float* scales = scales_ + first * groups_;
    const int32_t* q_sums = q_sums_ + first * groups_;
    RowsInt8* const rows = bytes_ ? kernels_.bytes.rows_int8 : kernels_.rows_int8;
    if (bytes_ || (count > 1 && rows != nullptr)) {
      rows(blocks, k_blocks_, codes, scales, q_sums, count, layout_, y, ldy);
      return;
    }
    one_by_one([&](int64_t row, float* to) {
      kernels_.fused_dqp_int8(blocks, k_blocks_, codes_ + row * padded_, scales_ + row * groups_,
                              q_sums_ + row * groups_, layout_, to);
    });
  } else {
    RowsBf16* const rows = bytes_ ? kernels_.bytes.rows_bf16 : kernels_.rows_bf16;
    if (bytes_ || (count > 1 && rows != nullptr)) {
      rows(blocks, k_blocks_, rounded_ + first * padded_, sums_ + first * groups_, count, layout_,
           y, ldy);
      return;
    }
    one_by_one([&](int64_t row, float* to) {
      kernels_.fused_dqp_bf16(blocks, k_blocks_, rounded_ + row * padded_, sums_ + row * groups_,
                              layout_, to);
    });
  }
}

}  // namespace ort_aie::host
