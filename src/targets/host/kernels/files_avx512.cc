// Forms of GGUF files with AVX-512: F, BW, DQ, VL, VNNI, VBMI.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_VECTOR_BYTES 64
#define ORT_AIE_DPBUSD(acc, w, a) \
  (vi) _mm512_dpbusd_epi32((__m512i)(acc), (__m512i)(w), (__m512i)(a))
#define ORT_AIE_FETCH(p) _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1)

namespace ort_aie::host {
namespace {
#pragma GCC diagnostic ignored "-Wunused-function"  // generic/ also has what files do not need
#include "targets/host/kernels/generic/vectors.inc"
#include "targets/host/kernels/generic/files.inc"
}  // namespace

extern const FileTable kAvx512Files, kAmxFiles;
constinit const FileTable kAvx512Files = GenericFiles({.int8 = 48, .bf16 = 32});
constinit const FileTable kAmxFiles = GenericFiles({.int8 = 17, .bf16 = 32});

}  // namespace ort_aie::host
