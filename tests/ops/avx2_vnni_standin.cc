// The kernels of avx2_vnni.cc on any CPU with AVX2: the same source with a stand-in for the
// instruction.
#include "avx2_vnni_standin.h"

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/avx2_vnni.inc"
}  // namespace

extern const Kernels kAvx2VnniStandinKernels;
constinit const Kernels kAvx2VnniStandinKernels =
    Avx2VnniKernels<_MM_HINT_T0>(kAvx2VnniStandinFiles);

}  // namespace ort_aie::host
