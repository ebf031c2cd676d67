// Packing from and to the blocks of a GGUF file, and what they mean (file_forms.h), in plain loops.
#pragma once

#include <cstdint>

#include "q4nx/layout.h"

namespace ort_aie::q4nx {

// Bytes of a row of k weights in a file; k is a multiple of the form's columns.
template <typename T>
constexpr T FileRowBytes(FileType type, T k) {
  const FileForm& form = FileFormOf(type);
  return CeilDiv(k, form.columns) * (LayoutOfBlock(form).bytes / kBlockRows);
}

// rows (n, FileRowBytes) <-> blocks (ceil(n/32), k/columns, BlockBytes), without a loss.
void PackFile(FileType type, const uint8_t* rows, int64_t n, int64_t k, uint8_t* blocks);
void UnpackFile(FileType type, const uint8_t* blocks, int64_t n, int64_t k, uint8_t* rows);

// Whether no scale and no minimum of rows of a file is a NaN or an infinity. Others must not be
// packed: int8 products would not show them.
bool HasFiniteScales(FileType type, const uint8_t* rows, int64_t n, int64_t k);

// k weights of out-feature n of blocks, bit for bit as ggml computes them.
void DequantizeFileRow(FileType type, const uint8_t* blocks, int64_t n, int64_t k, float* weights);

}  // namespace ort_aie::q4nx
