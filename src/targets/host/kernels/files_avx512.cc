// Forms of GGUF files with AVX-512: F, BW, DQ, VL, VNNI, VBMI.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_VECTOR_BYTES 64
#define ORT_AIE_DPBUSD(acc, w, a) \
  (vi) _mm512_dpbusd_epi32((__m512i)(acc), (__m512i)(w), (__m512i)(a))

namespace ort_aie::host {
namespace {
#pragma GCC diagnostic ignored "-Wunused-function"  // generic/ also has what files do not need
#include "targets/host/kernels/generic/files.inc"
}  // namespace

// On an AMD EPYC (Zen 4), one thread, in GFLOP/s: 16 rows of int8 make 300 to 360 with groups of 32
// and 220 to 270 with groups of 16, where GEMM makes 330 to 360 and 250 to 310; 8 rows of bf16 make
// 85, GEMM 105, and with dot products of bfloat16 230. A weight costs GEMM 0.03 ns to unpack, or
// 0.1 ns in bfloat16. For tiles this is computed, with 1.3 TFLOP/s.
extern const FileTable kAvx512Files, kAvx512Bf16Files, kAmxFiles;
constinit const FileTable kAvx512Files =
    GenericFiles({.int8_of_32 = 48, .int8_of_16 = 24, .bf16 = 24});
constinit const FileTable kAvx512Bf16Files =
    GenericFiles({.int8_of_32 = 48, .int8_of_16 = 24, .bf16 = 8});
constinit const FileTable kAmxFiles = GenericFiles({.int8_of_32 = 24, .int8_of_16 = 16, .bf16 = 6});

}  // namespace ort_aie::host
