// Copies of whole objects, for measurements (`design.py`): nothing but loads and stores.

#include <aie_api/aie.hpp>
#include <cstdint>

namespace {

template <unsigned Count>
inline void copy(const bfloat16* __restrict from, bfloat16* __restrict to) {
  for (unsigned i = 0; i < Count; i += 32) {
    aie::store_v(to + i, aie::load_v<32>(from + i));
  }
}

}  // namespace

extern "C" {

// 8 KB.
void copy_large(const bfloat16* __restrict from, bfloat16* __restrict to) { copy<4096>(from, to); }

// 512 bytes.
void copy_small(const bfloat16* __restrict from, bfloat16* __restrict to) { copy<256>(from, to); }

}  // extern "C"
