// The kernels for forms of GGUF files as C functions, for test_file_kernels.py. `kernels` is a
// table that KernelsNamed returned: of an instruction set, or a variant on its table.
#include <cstring>

#include "targets/host/host_target.h"
#include "targets/host/kernels/choice.h"
#include "targets/host/kernels/kernels.h"

using ort_aie::host::FileKernels;
using ort_aie::host::Kernels;

namespace {

const FileKernels& FilesOf(const void* kernels, int type) {
  return static_cast<const Kernels*>(kernels)->files[type];
}

}  // namespace

extern "C" {

const void* KernelsNamed(const char* isa) {
  const Kernels* const* table = ort_aie::host::AvailableKernels();
  while (*table != nullptr && std::strcmp((*table)->name, isa) != 0) ++table;
  return *table != nullptr ? *table : ort_aie::host::VariantNamed(isa);
}

void RowsInt8(const void* kernels, int type, const uint8_t* blocks, int64_t spans, const int8_t* a,
              const float* a_scales, const int32_t* q_sums, int64_t rows, float* y) {
  FilesOf(kernels, type).rows_int8(blocks, spans, a, a_scales, q_sums, rows, y, 32);
}

void RowsBf16(const void* kernels, int type, const uint8_t* blocks, int64_t spans, const float* a,
              const float* sums, int64_t rows, float* y) {
  FilesOf(kernels, type).rows_bf16(blocks, spans, a, sums, rows, y, 32);
}

void Dequantize(const void* kernels, int type, const uint8_t* blocks, int64_t spans,
                uint16_t* panel) {
  FilesOf(kernels, type).dequantize(blocks, spans, panel);
}

void Unpack(const void* kernels, int type, const uint8_t* blocks, int64_t spans, int8_t* codes,
            float* scales, float* mins, int32_t* offsets) {
  FilesOf(kernels, type).unpack(blocks, spans, codes, scales, mins, offsets);
}

void Gemm(const void* kernels, int type, const uint8_t* a, const float* a_scales,
          const int32_t* q_sums, int64_t rows, const int8_t* codes, const float* scales,
          const float* mins, const int32_t* offsets, int64_t spans, float* y) {
  const auto form = ort_aie::q4nx::FormOf(static_cast<ort_aie::FileType>(type));
  ort_aie::host::GemmOf(form, *static_cast<const Kernels*>(kernels))(
      a, a_scales, q_sums, spans * 32, rows, codes, scales, mins, offsets, spans, y, 32);
}

void QuantizeInt8(const void* kernels, int group, const float* x, int64_t spans, int32_t offset,
                  uint8_t* q, float* scales, int32_t* q_sums) {
  const auto* table = static_cast<const Kernels*>(kernels);
  (group == 16 ? table->quantize_int8_16 : table->quantize_int8)(x, spans, offset, q, scales,
                                                                 q_sums);
}

void GroupSums(const void* kernels, int group, const float* x, int64_t spans, float* sums) {
  const auto* table = static_cast<const Kernels*>(kernels);
  (group == 16 ? table->group_sums_16 : table->group_sums)(x, spans, sums);
}

}  // extern "C"
