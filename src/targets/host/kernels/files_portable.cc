// Forms of GGUF files in vector extensions only.
#include <stdint.h>

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_VECTOR_BYTES 16

namespace ort_aie::host {
namespace {
#pragma GCC diagnostic ignored "-Wunused-function"  // generic/ also has what files do not need
#include "targets/host/kernels/generic/files.inc"
}  // namespace

extern const FileTable kPortableFiles;
// As for Q4NX.
constinit const FileTable kPortableFiles =
    GenericFiles({.int8_of_32 = 24, .int8_of_16 = 24, .bf16 = 4});

}  // namespace ort_aie::host
