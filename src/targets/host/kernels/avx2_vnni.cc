// AVX2 with AVX-VNNI, which multiplies four bytes by four others and adds all products to a sum:
// Intel's CPUs without AVX-512 from Alder Lake on.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_DPBUSD(acc, w, a) \
  (vi) _mm256_dpbusd_avx_epi32((__m256i)(acc), (__m256i)(w), (__m256i)(a))

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/avx2_vnni.inc"
}  // namespace

extern const Kernels kAvx2VnniKernels, kAvx2VnniT1Kernels, kAvx2VnniT2Kernels, kAvx2VnniNtaKernels;
extern const Kernels kAvx2VnniTwoAheadKernels, kAvx2VnniFourAheadKernels;
constinit const Kernels kAvx2VnniKernels = Avx2VnniKernels<_MM_HINT_T0>(kAvx2VnniFiles);
constinit const Kernels kAvx2VnniT1Kernels = Avx2VnniKernels<_MM_HINT_T1>(kAvx2VnniFiles);
constinit const Kernels kAvx2VnniT2Kernels = Avx2VnniKernels<_MM_HINT_T2>(kAvx2VnniFiles);
constinit const Kernels kAvx2VnniNtaKernels = Avx2VnniKernels<_MM_HINT_NTA>(kAvx2VnniFiles);
constinit const Kernels kAvx2VnniTwoAheadKernels = Avx2VnniKernels<_MM_HINT_T1, 2>(kAvx2VnniFiles);
constinit const Kernels kAvx2VnniFourAheadKernels = Avx2VnniKernels<_MM_HINT_T1, 4>(kAvx2VnniFiles);

}  // namespace ort_aie::host
