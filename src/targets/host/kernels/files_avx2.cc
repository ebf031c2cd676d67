// Forms of GGUF files with AVX2, FMA and F16C.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_MADDUBS(bytes, signed_bytes) \
  (vh) _mm256_maddubs_epi16((__m256i)(bytes), (__m256i)(signed_bytes))
#define ORT_AIE_ADD_PAIRS(x) (vi) _mm256_madd_epi16((__m256i)(x), _mm256_set1_epi16(1))

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/files_avx2.inc"
}  // namespace

extern const FileTable kAvx2Files;
constinit const FileTable kAvx2Files = GenericFiles(kMostFileRows);

}  // namespace ort_aie::host
