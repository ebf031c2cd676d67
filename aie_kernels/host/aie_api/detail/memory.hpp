// Loads and stores. The chip does not fault on a pointer that is not aligned: it clears the low
// bits of the address, so that a 512-bit access lands up to 32 bytes low and the last lanes are
// never written (mlir-air's DFlashFeasibility.md, measured on Krackan; mlir-aie #2579, #3662). Here
// it throws.
#pragma once

#include "vector.hpp"

namespace aie {

inline constexpr unsigned vector_decl_align = detail::is_aie2p ? 64 : 32;

// Bytes; 512-bit accesses need 32 on AIE2 and 64 on AIE2P. Wider ones need no more: they are made
// of several (aie_api's ld_st.hpp; Peano's MaxVectorAlign, llvm-aie #363 and #414).
template <typename T, unsigned N>
inline constexpr unsigned vector_ldst_align_v = N * detail::bits_of<T> <= 128   ? 16
                                                : N * detail::bits_of<T> <= 256 ? 32
                                                                                : vector_decl_align;

namespace detail {

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
  detail::check_aligned(pointer, vector_ldst_align_v<element, N>, "load_v of a misaligned pointer");
  return detail::load<N, element>(pointer);
}

template <typename T>
auto load_v(T* pointer) {
  return load_v<detail::native_lanes<std::remove_const_t<T>>>(pointer);
}

template <typename T, unsigned N>
T* store_v(T* pointer, const vector<T, N>& v) {
  detail::check_aligned(pointer, vector_ldst_align_v<T, N>, "store_v to a misaligned pointer");
  std::memcpy(static_cast<void*>(pointer), &detail::host::lanes(v), sizeof detail::host::lanes(v));
  return pointer;
}

// `aligned_elems`: the pointer is known to be aligned to so many elements.
template <unsigned N, detail::resource = detail::resource::none, typename T>
vector<std::remove_const_t<T>, N> load_unaligned_v(T* pointer, unsigned aligned_elems = 1) {
  detail::check(detail::is_power_of_two(aligned_elems), "aligned_elems must be a power of two");
  detail::check_aligned(pointer, aligned_elems * sizeof(T),
                        "load_unaligned_v of a pointer less aligned than it says");
  return detail::load<N, std::remove_const_t<T>>(pointer);
}

// Writes only the vector; the chip rewrites the aligned windows around it.
template <typename T, unsigned N>
T* store_unaligned_v(T* pointer, const vector<T, N>& v, unsigned aligned_elems = 1) {
  detail::check(detail::is_power_of_two(aligned_elems), "aligned_elems must be a power of two");
  detail::check_aligned(pointer, aligned_elems * sizeof(T),
                        "store_unaligned_v to a pointer less aligned than it says");
  std::memcpy(static_cast<void*>(pointer), &detail::host::lanes(v), sizeof detail::host::lanes(v));
  return pointer;
}

namespace detail {

template <unsigned N, typename T>
class vector_iterator {
  using element = std::remove_const_t<T>;

  class reference {
   public:
    explicit reference(T* pointer) : pointer_(pointer) {}
    operator vector<element, N>() const { return load_v<N>(pointer_); }
    const reference& operator=(const vector<element, N>& v) const
      requires(!std::is_const_v<T>)
    {
      store_v(pointer_, v);
      return *this;
    }

   private:
    T* pointer_;
  };

 public:
  explicit vector_iterator(T* pointer) : pointer_(pointer) {}
  reference operator*() const { return reference(pointer_); }
  vector_iterator& operator++() { return *this += 1; }
  vector_iterator operator++(int) {
    vector_iterator before = *this;
    *this += 1;
    return before;
  }
  vector_iterator& operator+=(int vectors) {
    pointer_ += vectors * step;
    return *this;
  }
  vector_iterator operator+(int vectors) const { return vector_iterator(*this) += vectors; }
  bool operator==(const vector_iterator&) const = default;

 private:
  static constexpr int step = static_cast<int>(element_traits<element>::storages(N));
  T* pointer_;
};

}  // namespace detail

template <unsigned N, typename T>
auto begin_vector(T* pointer) {
  return detail::vector_iterator<N, T>(pointer);
}
template <unsigned N, typename T>
auto cbegin_vector(const T* pointer) {
  return detail::vector_iterator<N, const T>(pointer);
}
template <unsigned N, typename T>
auto begin_restrict_vector(T* __restrict pointer) {
  return detail::vector_iterator<N, T>(pointer);
}

}  // namespace aie
