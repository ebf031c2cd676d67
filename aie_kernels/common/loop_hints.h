// Hints about a loop for the software pipeliner of Peano (LLVM for AIE), written on the line before
// its `for`. Attributes as in mlir-aie's `aie_kernel_utils.h`. The host checks the promise instead:
// on the chip a loop with fewer trips than promised is undefined behaviour.
#pragma once

#include <aie_api/aie.hpp>

#ifdef AIE_API_HOST_STAND_IN

// `trips` lies in low .. high.
#define LOOP_TRIPS(trips, low, high) \
  aie::detail::check((trips) >= (low) && (trips) <= (high), "a loop's trips break its promise");
#define LOOP_UNROLL(count)
#define LOOP_UNROLL_FULL
#define LOOP_NO_UNROLL

#else

#define LOOP_PRAGMA(text) _Pragma(#text)
#define LOOP_TRIPS(trips, low, high)               \
  LOOP_PRAGMA(clang loop min_iteration_count(low)) \
  LOOP_PRAGMA(clang loop max_iteration_count(high))
#define LOOP_UNROLL(count) LOOP_PRAGMA(clang loop unroll_count(count))
#define LOOP_UNROLL_FULL LOOP_PRAGMA(clang loop unroll(full))
#define LOOP_NO_UNROLL LOOP_PRAGMA(clang loop unroll(disable))

#endif
