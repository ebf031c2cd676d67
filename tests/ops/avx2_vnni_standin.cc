// The kernels of avx2_vnni.cc on any CPU with AVX2: the same source with a stand-in for the
// instruction.
#include <immintrin.h>

#include "targets/host/kernels/kernels.h"

// acc + the sum of four products of unsigned bytes of w and signed ones of a, in each lane; the
// bytes at even and at odd places.
#define ORT_AIE_DPBUSD(acc, w, a)                                                                \
  ((acc) + (vi)_mm256_madd_epi16((__m256i)((w) & 0x00ff00ffu), (__m256i)(((vh)(a) << 8) >> 8)) + \
   (vi)_mm256_madd_epi16((__m256i)(((w) >> 8) & 0x00ff00ffu), (__m256i)((vh)(a) >> 8)))

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/avx2_vnni.inc"
}  // namespace

extern const Kernels kAvx2VnniStandinKernels;
constinit const Kernels kAvx2VnniStandinKernels = Avx2VnniKernels<_MM_HINT_T0>();

}  // namespace ort_aie::host
