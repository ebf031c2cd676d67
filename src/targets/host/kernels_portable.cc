// The baseline of the compiler's target (SSE2 on x86-64), written in vector extensions only.
#include "targets/host/kernels.h"

#include <stddef.h>
#include <stdint.h>

#define ORT_AIE_VECTOR_BYTES 16

namespace ort_aie::host {
namespace {
#include "targets/host/kernels_generic.inc"
}  // namespace

extern const Kernels kPortableKernels;
const Kernels kPortableKernels = {
    "portable",      Float16ToFloat,  Bfloat16ToFloat, FloatToFloat16, FloatToBfloat16,
    QuantizeInt8,    GroupSums,       FusedDqpBf16,    FusedDqpInt8,   DequantizeBlock,
    GemmBf16,        UnpackBlock,     GemmInt8,        Scores,         ScoresMany,
    Softcap,         Max,             ExpSum,          Accumulate,
};

}  // namespace ort_aie::host
