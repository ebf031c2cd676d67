// Loads and stores. The chip does not fault on a pointer that is not aligned: it clears the low
// bits of the address, so that a 512-bit access lands up to 32 bytes low and the last lanes are
// never written (mlir-air's DFlashFeasibility.md, measured on Krackan; mlir-aie #2579, #3662). Here
// it throws.
#pragma once

#include "vector.hpp"

namespace aie {

namespace detail {

// Bytes; 512-bit accesses need 32 on AIE2 and 64 on AIE2P. Wider ones need no more: they are made
// of several (aie_api's ld_st.hpp; Peano's MaxVectorAlign, llvm-aie #363 and #414).
template <typename T, unsigned N>
inline constexpr unsigned alignment = N * bits_of<T> <= 128   ? 16
                                      : N * bits_of<T> <= 256 ? 32
                                                              : (is_aie2p ? 64 : 32);

template <typename T>
inline constexpr unsigned native_lanes = 512 / bits_of<T>;

inline void check_aligned(const void* pointer, unsigned bytes, const char* what) {
  check(reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0, what);
}

template <unsigned N, typename T>
vector<T, N> load(const T* pointer) {
  vector<T, N> result{unfilled{}};
  std::memcpy(static_cast<void*>(&host::lanes(result)), pointer, sizeof host::lanes(result));
  return result;
}

// The API's second template argument is a bank of memory, not the type.
enum class resource { none };

}  // namespace detail

template <unsigned N, detail::resource = detail::resource::none, typename T>
vector<std::remove_const_t<T>, N> load_v(T* pointer) {
  using element = std::remove_const_t<T>;
  detail::check_aligned(pointer, detail::alignment<element, N>, "load_v of a misaligned pointer");
  return detail::load<N, element>(pointer);
}

template <typename T>
auto load_v(T* pointer) {
  return load_v<detail::native_lanes<std::remove_const_t<T>>>(pointer);
}

template <typename T, unsigned N>
T* store_v(T* pointer, const vector<T, N>& v) {
  detail::check_aligned(pointer, detail::alignment<T, N>, "store_v to a misaligned pointer");
  std::memcpy(static_cast<void*>(pointer), &detail::host::lanes(v), sizeof detail::host::lanes(v));
  return pointer;
}

}  // namespace aie
