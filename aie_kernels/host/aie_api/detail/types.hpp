// Element types, core state and the limits that differ between the architectures.
#pragma once

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

// Accumulator tags, which the compilers for AIE define globally, like the scalar types below.
struct accfloat {};
struct acc32 {};
struct acc64 {};
struct accauto {};

using int8 = std::int8_t;
using uint8 = std::uint8_t;
using int16 = std::int16_t;
using uint16 = std::uint16_t;
using int32 = std::int32_t;
using uint32 = std::uint32_t;

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
class int4 {
 public:
  int4() = default;
  explicit constexpr int4(int value) : value_(static_cast<int8_t>(((value & 15) ^ 8) - 8)) {}
  constexpr operator int() const { return value_; }

 private:
  int8_t value_;
};

// Trace markers.
inline void event0() {}
inline void event1() {}

// Kernels that depend on the architecture test this.
#define AIE_API_HOST_STAND_IN 1

namespace aie {

// Codes of the hardware's control register.
enum class rounding_mode : unsigned {
  floor = 0,
  ceil = 1,
  symmetric_floor = 2,
  symmetric_ceil = 3,
  negative_inf = 8,
  positive_inf = 9,
  symmetric_zero = 10,
  symmetric_inf = 11,
  conv_even = 12,
  conv_odd = 13,
};

enum class saturation_mode : unsigned { none = 0, saturate = 1, symmetric = 3 };

namespace detail {

inline constexpr bool is_aie2p = __AIE_ARCH__ == 21;

// Core state that outlives a kernel's call, as after power-up. `mode_needed`: a kernel runs that
// has set no rounding mode yet, and must before something depends on it.
struct core_state {
  rounding_mode rounding = rounding_mode::floor;
  saturation_mode saturation = saturation_mode::none;
  bool mode_needed = false;
};
inline constinit thread_local core_state core;

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

// The mode for a result that depends on it. After power-up a core rounds to floor, and its mode is
// whatever the kernel before has left there (aie_types.hpp; mlir-aie #3726, where 17 kernels never
// set it): a kernel that rounds sets the mode itself.
inline rounding_mode rounding_in_use() {
  check(!core.mode_needed, "it rounds without having set a rounding mode");
  return core.rounding;
}

}  // namespace detail

inline void set_rounding(rounding_mode mode) {
  detail::core.rounding = mode;
  detail::core.mode_needed = false;
}
inline rounding_mode get_rounding() { return detail::core.rounding; }
inline rounding_mode swap_rounding(rounding_mode mode) {
  detail::core.mode_needed = false;
  return std::exchange(detail::core.rounding, mode);
}
inline void set_saturation(saturation_mode mode) { detail::core.saturation = mode; }
inline saturation_mode get_saturation() { return detail::core.saturation; }
inline saturation_mode swap_saturation(saturation_mode mode) {
  return std::exchange(detail::core.saturation, mode);
}

}  // namespace aie
