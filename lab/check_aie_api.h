// What the compilers for AIE know by themselves and an ordinary clang does not, as far as the AIE
// API needs it to be read: types without content. check_aie_api.py adds the names of vectors and
// intrinsics, which it takes from the API's own headers.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

namespace aie_check {

// The result of an intrinsic: it becomes whatever it is taken for.
struct any {
  template <typename T>
  constexpr operator T() const;
  template <typename T>
  any& operator=(T&&);
};

template <typename Tag>
struct native {
  constexpr native() = default;
  constexpr native(const any&) {}
  template <typename T>
  constexpr explicit native(const T&) {}
  template <typename T>
    requires(std::is_arithmetic_v<T>)
  constexpr native(T) {}
};

template <typename T>
struct complex {
  T real, imag;
};

template <typename Storage>
struct four_bits {
  four_bits() = default;
  constexpr four_bits(int) : hidden() {}
  constexpr operator int() const { return 0; }

 private:
  Storage hidden;
};

}  // namespace aie_check

struct bfloat16 {
  bfloat16() = default;
  constexpr bfloat16(float) : hidden() {}
  constexpr operator float() const { return 0; }

 private:
  short hidden;
};
using int4_t = aie_check::four_bits<signed char>;
using uint4_t = aie_check::four_bits<unsigned char>;
using cint16 = aie_check::complex<short>;
using cint32 = aie_check::complex<int>;
using cfloat = aie_check::complex<float>;
#if __AIE_ARCH__ == 20
using cbfloat16 = aie_check::complex<bfloat16>;
struct caccfloat {};
#endif

struct accfloat {};
struct acc16 {};
struct acc24 {};
struct acc32 {};
struct acc40 {};
struct acc48 {};
struct acc56 {};
struct acc64 {};
struct cacc16 {};
struct cacc24 {};
struct cacc32 {};
struct cacc40 {};
struct cacc48 {};
struct cacc56 {};
struct cacc64 {};

using addr_t = unsigned;
using mask64 = unsigned long;
using bcast_t = unsigned;
struct fifo_state_t {
  int pos;
  aie_check::any fifo;
};
struct sparse_fifo_t {
  int pos;
};
struct dims_2d_t {
  unsigned num1, inc1, inc2, count1;
  dims_2d_t(...);
};
struct dims_3d_t {
  unsigned num1, num2, inc1, inc2, inc3, count1, count2;
  dims_3d_t(...);
};

inline void event0() {}
inline void event1() {}

// Banks of memory.
enum class aie_dm_resource { none, a, b, c, d, ab, ac, ad, bc, bd, cd, stack };
template <typename T>
using aie_dm_resource_remove_t = T;
template <typename T, aie_dm_resource>
using aie_dm_resource_set_t = T;
template <typename T>
inline constexpr aie_dm_resource aie_dm_resource_get_v = aie_dm_resource::none;
#define __aie_dm_resource_a
#define __aie_dm_resource_b
#define __aie_dm_resource_c
#define __aie_dm_resource_d
#define __aie_dm_resource_ab
#define __aie_dm_resource_ac
#define __aie_dm_resource_ad
#define __aie_dm_resource_bc
#define __aie_dm_resource_bd
#define __aie_dm_resource_cd
#define __aie_dm_resource_stack

// Hints.
#define AIE_VECTOR_LDST_ALIGN 64
#define property(...)
#define __aie_register(...)
#define __aie_register_keep(...)
template <typename T>
T __aie_copy(const T&);
#define chess_const(...) false
#define chess_copy(x) x
#define chess_dont_care(T) T()
#define chess_error(...) ((void)0)
#define chess_loop_range(...)
#define chess_manifest(...) false
#define chess_prepare_for_pipelining
#define chess_protect_access
#define chess_separator()
#define chess_separator_scheduler(...)
#define chess_separator_scheduler_local(...)
#define chess_storage(...)
#define chess_unroll_loop(...)
#define chess_warning(...) ((void)0)

#if __AIE_ARCH__ == 21
struct bfp16ebs8 {};
struct bfp16ebs16 {};
// An intrinsic that kernels call and the API does not.
template <typename... A>
aie_check::any mac_8x8_8x8T(A&&...);
#endif
