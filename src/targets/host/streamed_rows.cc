#include "targets/host/streamed_rows.h"

namespace ort_aie::host {
namespace {

using q4nx::kBlockCols;
using q4nx::kGroup;
using q4nx::PaddedCols;

// n values as floats that are bfloat16 values.
void RoundToBf16(const Kernels& kernels, const float* x, int64_t n, float* y) {
  uint16_t block[kBlockCols];
  for (int64_t i = 0; i < n; i += kBlockCols) {
    const int64_t count = std::min(kBlockCols, n - i);
    kernels.float_to_bfloat16(x + i, count, block);
    kernels.bfloat16_to_float(block, count, y + i);
  }
}

}  // namespace

// A row of x as float, padded with zeros to whole blocks: in `buffer`, or in place if it needs no
// change.
const float* LoadPadded(const MatMulStep& step, const Kernels& kernels, const float* norm_weight,
                        int64_t row, float* buffer) {
  const int64_t padded = PaddedCols(step.k, step.form);
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
      form_(step.form),
      int8_(step.numerics == Numerics::kInt8),
      lookup_(step.form.kind == WeightKind::kQ2NX),
      alone_(rows == 1),
      layout_(LayoutOf(step.form, step.symmetric)),
      k_blocks_(q4nx::ColBlocks(step.k, step.form)),
      padded_(PaddedCols(step.k, step.form)),
      groups_(padded_ / kGroup),
      sum_groups_(padded_ / std::min(kGroup, step.form.group)),
      table_bytes_(padded_ / q4nx::kQuad * kMaxTableBytes) {
  if (lookup_) {
    if (alone_) return;
    tables_ = Scratch<uint8_t>(Purpose::kActivations, rows * table_bytes_);
    scales_ = Scratch<float>(Purpose::kActivationScales, rows * groups_);
    sums_ = Scratch<float>(Purpose::kActivationSums, rows * groups_);
    looked_up_ = {tables_, scales_, sums_};
  } else if (int8_) {
    scales_ = Scratch<float>(Purpose::kActivationScales, rows * groups_);
    q_sums_ = Scratch<int32_t>(Purpose::kCodeSums, rows * sum_groups_);
    codes_ = Scratch<int8_t>(Purpose::kActivationCodes, rows * padded_);
  } else {
    rounded_ = Scratch<float>(Purpose::kActivations, rows * padded_);
    sums_ = Scratch<float>(Purpose::kActivationSums, rows * sum_groups_);
  }
}

void StreamedRows::Prepare(int64_t row, const float* x) {
  if (lookup_ && alone_) {
    looked_up_ = TablesOf(kernels_, !int8_, x, padded_);
  } else if (lookup_) {
    if (!int8_) {
      float* rounded = Scratch<float>(Purpose::kSkip, padded_);
      RoundToBf16(kernels_, x, padded_, rounded);
      x = rounded;
    }
    const LookupMatvec& matvec = int8_ ? kernels_.lookup->int8 : kernels_.lookup->bf16;
    matvec.make_tables(x, groups_, tables_ + row * table_bytes_, scales_ + row * groups_,
                       sums_ + row * groups_);
  } else if (int8_) {
    const auto quantize =
        sum_groups_ == groups_ ? kernels_.quantize_int8 : kernels_.quantize_int8_16;
    quantize(x, groups_, 0, reinterpret_cast<uint8_t*>(codes_ + row * padded_),
             scales_ + row * groups_, q_sums_ + row * sum_groups_);
  } else {
    float* to = rounded_ + row * padded_;
    RoundToBf16(kernels_, x, padded_, to);
    const auto group_sums = sum_groups_ == groups_ ? kernels_.group_sums : kernels_.group_sums_16;
    group_sums(to, groups_, sums_ + row * sum_groups_);
  }
}

void StreamedRows::Multiply(const Kernels& kernels, const uint8_t* blocks, int64_t first,
                            int64_t count, float* y, int64_t ldy) const {
  // Codes of int8 with scales, or floats, and the sums of either; the others are null.
  const auto from_first = [first](const auto* of, int64_t in_row) {
    return of == nullptr ? of : of + first * in_row;
  };
  const int8_t* codes = from_first(codes_, padded_);
  const float* scales = from_first(scales_, groups_);
  const int32_t* q_sums = from_first(q_sums_, sum_groups_);
  const float* rounded = from_first(rounded_, padded_);
  const float* sums = from_first(sums_, sum_groups_);
  switch (form_.kind) {
    case WeightKind::kFile: {
      const FileKernels& its = FilesOf(kernels, form_);
      return int8_ ? its.rows_int8(blocks, groups_, codes, scales, q_sums, count, y, ldy)
                   : its.rows_bf16(blocks, groups_, rounded, sums, count, y, ldy);
    }
    case WeightKind::kQ8NX:
      return int8_ ? kernels.bytes.rows_int8(blocks, k_blocks_, codes, scales, q_sums, count,
                                             layout_, y, ldy)
                   : kernels.bytes.rows_bf16(blocks, k_blocks_, rounded, sums, count, layout_, y,
                                             ldy);
    case WeightKind::kQ2NX: {
      const LookupMatvec& matvec = int8_ ? kernels.lookup->int8 : kernels.lookup->bf16;
      const auto& [tables, steps, table_sums] = looked_up_;
      for (int64_t row = first; row < first + count; ++row, y += ldy) {
        matvec.multiply(blocks, k_blocks_, tables + row * table_bytes_, steps + row * groups_,
                        table_sums + row * groups_, layout_, y);
      }
      return;
    }
    default:
      break;
  }
  if (int8_) {
    if (count > 1 && kernels.rows_int8 != nullptr) {
      return kernels.rows_int8(blocks, k_blocks_, codes, scales, q_sums, count, layout_, y, ldy);
    }
    for (int64_t i = 0; i < count; ++i, y += ldy) {
      kernels.fused_dqp_int8(blocks, k_blocks_, codes + i * padded_, scales + i * groups_,
                             q_sums + i * groups_, layout_, y);
    }
  } else {
    if (count > 1 && kernels.rows_bf16 != nullptr) {
      return kernels.rows_bf16(blocks, k_blocks_, rounded, sums, count, layout_, y, ldy);
    }
    for (int64_t i = 0; i < count; ++i, y += ldy) {
      kernels.fused_dqp_bf16(blocks, k_blocks_, rounded + i * padded_, sums + i * groups_, layout_,
                             y);
    }
  }
}

}  // namespace ort_aie::host
