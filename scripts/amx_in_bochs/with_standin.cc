#include "amx_standin.h"
//
#include "kernels_of.inc"

namespace bare {
const Compared kStandin = {ort_aie::host::Product, ort_aie::host::TileGemmBf16,
                           ort_aie::host::TileScores, ort_aie::host::TileAccumulate};
}
