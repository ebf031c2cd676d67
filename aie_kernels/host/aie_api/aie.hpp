// A stand-in of the AIE API for the host: the kernels of `aie_kernels/` compile against it
// and then compute what the cores would, bit for bit where that is known.
//
// It has only what the kernels use, for one architecture at a time: __AIE_ARCH__ is 20 (AIE2:
// Phoenix, Hawk Point) or 21 (AIE2P: Strix and later). What else an architecture lacks,
// `make real-headers` finds. Names, semantics and limits follow Xilinx/aie_api (`aie_doc.hpp`,
// `detail/aie2`, `detail/aie2p`); numerics that the API leaves to the silicon follow the published
// models named where they are used. Unknown properties of the silicon are marked "assumed".
#pragma once

#include "detail/accum.hpp"
#include "detail/arithmetic.hpp"
#include "detail/block_vector.hpp"
#include "detail/conversions.hpp"
#include "detail/elementary.hpp"
#include "detail/memory.hpp"
#include "detail/mmul.hpp"
#include "detail/moves.hpp"
#include "detail/multiply.hpp"
#include "detail/reduce.hpp"
#include "detail/rounding.hpp"
#include "detail/types.hpp"
#include "detail/vector.hpp"
