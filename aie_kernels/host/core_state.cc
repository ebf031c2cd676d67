// For the loader: calls a kernel on a core as it is after power-up, so that a kernel that relies on
// a rounding mode that it has not set itself is found out.

#include <aie_api/aie.hpp>
#include <cstdint>

// Calls `kernel` with pointers and int32_t, the first of 16 `arguments`. Returns null, or the
// promise to the chip or its compiler that the kernel broke, where it stopped.
//
// In the calling convention of x86-64 Linux each argument has its own register or eight bytes of
// the stack, and a function never sees extra arguments: one type serves all kernels.
extern "C" const char* aie_host_call(void* kernel, const std::intptr_t* arguments) {
  using word = std::intptr_t;
  using entry = void (*)(word, word, word, word, word, word, word, word, word, word, word, word,
                         word, word, word, word);
  aie::detail::mode_needed = true;
  const word* a = arguments;
  try {
    reinterpret_cast<entry>(kernel)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9],
                                    a[10], a[11], a[12], a[13], a[14], a[15]);
  } catch (const aie::detail::broken_promise& promise) {
    return promise.what();
  }
  return nullptr;
}
