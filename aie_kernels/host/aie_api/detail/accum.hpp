// aie::accum: fp32 or integer accumulators.
#pragma once

#include "vector.hpp"

// Builds of Peano disagree about its size, so kernels must not count in it: no arithmetic compiles.
struct bfp16ebs8;

namespace aie {

template <typename T, unsigned N>
class block_vector;
template <typename Tag, unsigned N>
class accum;

namespace detail {

template <typename Tag>
struct accum_traits {
  static constexpr bool exists = false;
};
template <>
struct accum_traits<accfloat> {
  static constexpr bool exists = true;
  static constexpr unsigned min_lanes = 4, max_lanes = 128;
  using storage = float;
};
template <>
struct accum_traits<acc32> {
  static constexpr bool exists = true;
  static constexpr unsigned min_lanes = 8, max_lanes = 128;
  using storage = int32_t;
};
template <>
struct accum_traits<acc64> {
  static constexpr bool exists = true;
  static constexpr unsigned min_lanes = 4, max_lanes = 64;
  using storage = int64_t;
};

// Shift, round and saturate in the current modes.
template <typename T>
T shift_round_saturate(int64_t value, unsigned shift) {
  const bool negative = value < 0;
  const auto magnitude = static_cast<unsigned __int128>(negative ? -(__int128{value}) : value);
  // Left-aligned, so that the same 63 bits are dropped whatever the shift.
  constexpr unsigned width = 63;
  const rounder<width> rounding(shift == 0 ? rounding_mode::floor : rounding_in_use());
  const unsigned __int128 aligned = magnitude << (width - shift);
  const auto odd = static_cast<uint64_t>((aligned >> width) & 1);
  const auto rounded = static_cast<int64_t>((aligned + rounding.add(negative, odd)) >> width);
  const int64_t result = negative ? -rounded : rounded;
  if (core.saturation == saturation_mode::none) {
    return static_cast<T>(result);
  }
  constexpr unsigned value_bits = bits_of<T> - (element_traits<T>::is_signed ? 1 : 0);
  const int64_t high = (int64_t{1} << value_bits) - 1;
  int64_t low = element_traits<T>::is_signed ? -high - 1 : 0;
  if (element_traits<T>::is_signed && core.saturation == saturation_mode::symmetric) {
    low = -high;
  }
  return static_cast<T>(result < low ? low : result > high ? high : result);
}

template <typename T, unsigned N>
using narrowed = std::conditional_t<std::is_same_v<T, bfp16ebs8>, block_vector<T, N>, vector<T, N>>;
template <unsigned N>
block_vector<bfp16ebs8, N> to_blocks(const accum<accfloat, N>& values);

}  // namespace detail

template <typename Tag, unsigned N>
class accum {
  using traits = detail::accum_traits<Tag>;
  using storage = typename traits::storage;
  static_assert(traits::exists, "AIE: accumulators are accfloat, acc32 or acc64");
  static_assert(detail::is_power_of_two(N), "AIE: the lane count must be a power of two");
  static_assert(N >= traits::min_lanes && N <= traits::max_lanes,
                "AIE: no accumulator of this lane count");

 public:
  using value_type = Tag;

  accum() { detail::make_undefined(lanes_); }
  explicit accum(detail::unfilled) {}

  // An integer vector is shifted up by `shift`.
  template <typename T>
  explicit accum(const vector<T, N>& v, int shift = 0) {
    from_vector(v, shift);
  }
  template <typename T>
  accum& operator=(const vector<T, N>& v) {
    from_vector(v);
    return *this;
  }

  template <typename T>
  void from_vector(const vector<T, N>& v, int shift = 0) {
    const auto& source = detail::host::lanes(v);
    if constexpr (std::is_same_v<Tag, accfloat>) {
      static_assert(detail::is_floating<T>, "AIE: accfloat is filled from float or bfloat16");
      for (unsigned lane = 0; lane < N; ++lane) {
        lanes_[lane] = source[lane];
      }
    } else {
      static_assert(!detail::is_floating<T> && !detail::is_four_bit<T>,
                    "AIE: an integer accumulator is filled from integers of 8 bits or more");
      for (unsigned lane = 0; lane < N; ++lane) {
        lanes_[lane] = static_cast<storage>(static_cast<int64_t>(source[lane]) << shift);
      }
    }
  }

  template <typename T>
  detail::narrowed<T, N> to_vector([[maybe_unused]] int shift = 0) const {
    if constexpr (std::is_same_v<T, bfp16ebs8>) {
      static_assert(std::is_same_v<Tag, accfloat>, "AIE: blocks of bfp16 are made of accfloat");
      return detail::to_blocks(*this);
    } else if constexpr (std::is_same_v<Tag, accfloat>) {
      static_assert(std::is_same_v<T, float> || std::is_same_v<T, bfloat16>,
                    "AIE: accfloat becomes float or bfloat16; to integers by aie::to_fixed");
      if constexpr (std::is_same_v<T, float>) {
        return detail::generate<vector<float, N>>([this](unsigned lane) { return lanes_[lane]; });
      } else {
        const detail::rounder<16> rounding(detail::rounding_in_use());
        return detail::generate<vector<bfloat16, N>>([&](unsigned lane) {
          return detail::bf16_of_bits(
              detail::round_to_bf16(std::bit_cast<uint32_t>(lanes_[lane]), rounding));
        });
      }
    } else {
      static_assert(!detail::is_floating<T> && !detail::is_four_bit<T>,
                    "AIE: an integer accumulator becomes integers of 8 bits or more");
      detail::check(shift >= 0 && shift < 63, "to_vector needs a shift of 0 to 62");
      return detail::generate<vector<T, N>>([&](unsigned lane) {
        return detail::shift_round_saturate<T>(lanes_[lane], static_cast<unsigned>(shift));
      });
    }
  }

  template <typename T>
    requires(std::is_same_v<T, float> || std::is_same_v<T, bfloat16>)
  operator vector<T, N>() const {
    static_assert(std::is_same_v<Tag, accfloat>,
                  "AIE: integer accumulators never convert implicitly; use to_vector<T>(shift)");
    static_assert(N <= 32, "AIE: above 32 lanes conversion is explicit; use to_vector<T>()");
    return to_vector<T>();
  }

  static constexpr unsigned size() { return N; }

  template <unsigned M>
  accum<Tag, M> extract(unsigned part) const {
    static_assert(M <= N, "AIE: extract cannot widen; use grow");
    detail::check(part < N / M, "accum::extract of a part beyond the accumulator");
    accum<Tag, M> result{detail::unfilled{}};
    std::memcpy(&result.lanes_, lanes_.data() + part * M, sizeof result.lanes_);
    return result;
  }

  template <unsigned M>
  accum& insert(unsigned part, const accum<Tag, M>& sub) {
    static_assert(M <= N, "AIE: the inserted accumulator is wider than its target");
    detail::check(part < N / M, "accum::insert of a part beyond the accumulator");
    std::memcpy(lanes_.data() + part * M, &sub.lanes_, sizeof sub.lanes_);
    return *this;
  }

  template <unsigned M>
  accum<Tag, M> grow() const {
    static_assert(M >= N, "AIE: grow cannot narrow; use extract");
    accum<Tag, M> result;
    result.insert(0, *this);
    return result;
  }

  template <typename Tag2>
  accum<Tag2, N * sizeof(storage) / sizeof(typename detail::accum_traits<Tag2>::storage)> cast_to()
      const {
    accum<Tag2, N * sizeof(storage) / sizeof(typename detail::accum_traits<Tag2>::storage)> result{
        detail::unfilled{}};
    static_assert(sizeof result.lanes_ == sizeof lanes_);
    std::memcpy(&result.lanes_, &lanes_, sizeof lanes_);
    return result;
  }

 private:
  template <typename, unsigned>
  friend class accum;
  friend struct detail::host;
  detail::lanes_of<storage, N> lanes_;
};

namespace detail {

template <typename X>
inline constexpr bool is_accum = false;
template <typename Tag, unsigned N>
inline constexpr bool is_accum<accum<Tag, N>> = true;

}  // namespace detail
}  // namespace aie
