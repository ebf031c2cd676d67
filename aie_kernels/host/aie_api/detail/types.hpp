// Element types, core state and the limits that differ between the architectures.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <exception>
#include <type_traits>
#include <utility>

#if !defined(__AIE_ARCH__) || (__AIE_ARCH__ != 20 && __AIE_ARCH__ != 21)
#error "define __AIE_ARCH__ as 20 (AIE2) or 21 (AIE2P)"
#endif

// An accumulator's tag, which the compilers for AIE define globally, like the scalar types below.
struct accfloat {};

using uint8 = std::uint8_t;
using uint16 = std::uint16_t;
using int32 = std::int32_t;

// Four-bit integers are _BitInt(4) on the chip, and a byte apart in memory: a pointer steps bytes,
// two codes each, and a vector of N of them has N / 2 bytes, low nibble first.
class uint4 {
 public:
  uint4() = default;
  explicit constexpr uint4(int value) : value_(static_cast<uint8_t>(value & 15)) {}
  constexpr operator int() const { return value_; }

 private:
  uint8_t value_;
};

// Trace markers.
inline void event0() {}
inline void event1() {}

// Kernels that depend on the architecture test this.
#define AIE_API_HOST_STAND_IN 1

namespace aie {

// To nearest, ties to even: the only mode that kernels use. The number is the hardware's.
enum class rounding_mode : unsigned { conv_even = 12 };

namespace detail {

inline constexpr bool is_aie2p = __AIE_ARCH__ == 21;

// A kernel runs that has set no rounding mode yet, and must before something depends on it.
inline constinit thread_local bool mode_needed = false;

// Reports that a kernel relied on behaviour that the chip leaves undefined; `what` is a literal.
class broken_promise : public std::exception {
 public:
  explicit broken_promise(const char* what) : what_(what) {}
  const char* what() const noexcept override { return what_; }

 private:
  const char* what_;
};

[[noreturn]] inline void fail(const char* what) { throw broken_promise(what); }

inline void check(bool fine, const char* what) {
  if (!fine) [[unlikely]] {
    fail(what);
  }
}

// Before a result that depends on the mode. After power-up a core rounds to floor, and its mode is
// whatever the kernel before has left there (aie_types.hpp; mlir-aie #3726, where 17 kernels never
// set it): a kernel that rounds sets the mode itself.
inline void need_mode() { check(!mode_needed, "it rounds without having set a rounding mode"); }

}  // namespace detail

inline void set_rounding(rounding_mode) { detail::mode_needed = false; }

}  // namespace aie
