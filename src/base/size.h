// Sizes that a model or a file names. Their products and sums cannot wrap. A number that is
// negative or beyond int64_t behaves like a NaN: every result computed from it is out of range too,
// and it compares equal to nothing.
//
//   const Size bytes = Size(n) * CeilDiv(k, 256) * 5120;
//   if (bytes != given) return Concat("expected ", bytes);     // to give a reason
//   std::vector<uint8_t> copy(bytes.As<size_t>("the copy"));   // to throw an Error
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <ostream>
#include <utility>

#include "base/error.h"

namespace ort_aie {

class Size {
 public:
  // From any integer. A negative one, or one beyond int64_t, is out of range.
  template <std::integral T>
  constexpr Size(T number)
      : number_(std::in_range<int64_t>(number) && std::cmp_greater_equal(number, 0)
                    ? static_cast<int64_t>(number)
                    : kOutOfRange) {}

  constexpr bool InRange() const { return number_ != kOutOfRange; }

  // The number, as a type that may hold less. Throws Error naming `what` if it does not fit.
  template <std::integral T = int64_t>
  constexpr T As(const char* what) const {
    if (!InRange() || !std::in_range<T>(number_)) {
      Fail(ErrorCode::kInvalidArgument, "the size of ", what, " is ", *this,
           InRange() ? ", which does not fit its type" : "");
    }
    return static_cast<T>(number_);
  }

  friend constexpr Size operator+(Size a, Size b) {
    int64_t sum = 0;
    const bool good =
        a.InRange() && b.InRange() && !__builtin_add_overflow(a.number_, b.number_, &sum);
    return good ? Size(sum) : OutOfRange();
  }
  friend constexpr Size operator*(Size a, Size b) {
    int64_t product = 0;
    const bool good =
        a.InRange() && b.InRange() && !__builtin_mul_overflow(a.number_, b.number_, &product);
    return good ? Size(product) : OutOfRange();
  }
  // How many times `b` it takes to hold `a`; out of range if b is 0.
  friend constexpr Size CeilDiv(Size a, Size b) {
    if (!a.InRange() || !b.InRange() || b.number_ == 0) return OutOfRange();
    return a.number_ / b.number_ + (a.number_ % b.number_ != 0 ? 1 : 0);
  }

  friend constexpr bool operator==(Size a, Size b) {
    return a.InRange() && b.InRange() && a.number_ == b.number_;
  }
  // False if either is out of range.
  friend constexpr bool operator<=(Size a, Size b) {
    return a.InRange() && b.InRange() && a.number_ <= b.number_;
  }

  friend std::ostream& operator<<(std::ostream& out, Size size) {
    return size.InRange() ? out << size.number_ : out << "(out of range)";
  }

 private:
  static constexpr int64_t kOutOfRange = -1;
  static constexpr Size OutOfRange() { return Size(kOutOfRange); }

  int64_t number_;
};

// `size` rounded up to a whole multiple.
constexpr Size RoundUp(Size size, Size multiple) { return CeilDiv(size, multiple) * multiple; }

}  // namespace ort_aie
