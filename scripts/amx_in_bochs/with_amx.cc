#include <immintrin.h>

#include "kernels_of.inc"

namespace bare {
const Compared kAmx = {ort_aie::host::Product, ort_aie::host::TileGemmBf16,
                       ort_aie::host::TileScores, ort_aie::host::TileAccumulate};
}
