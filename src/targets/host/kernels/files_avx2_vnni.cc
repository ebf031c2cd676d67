// Forms of GGUF files in int8 with AVX2 and AVX-VNNI.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_DPBUSD(acc, w, a) \
  (vi) _mm256_dpbusd_avx_epi32((__m256i)(acc), (__m256i)(w), (__m256i)(a))

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/files_avx2.inc"
}  // namespace

extern const FileTable kAvx2VnniFiles;
constinit const FileTable kAvx2VnniFiles = GenericFiles<true>(kMostFileRows);

}  // namespace ort_aie::host
