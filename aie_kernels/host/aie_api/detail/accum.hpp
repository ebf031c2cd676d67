// aie::accum of fp32.
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

template <typename T, unsigned N>
using narrowed = std::conditional_t<std::is_same_v<T, bfp16ebs8>, block_vector<T, N>, vector<T, N>>;
template <unsigned N>
block_vector<bfp16ebs8, N> to_blocks(const accum<accfloat, N>& values);

}  // namespace detail

template <typename Tag, unsigned N>
class accum {
  static_assert(std::is_same_v<Tag, accfloat>,
                "AIE: the stand-in has accumulators of accfloat only");
  static_assert(detail::is_power_of_two(N), "AIE: the lane count must be a power of two");
  static_assert(N >= 4 && N <= 128, "AIE: no accumulator of this lane count");

 public:
  accum() { detail::make_undefined(lanes_); }
  explicit accum(detail::unfilled) {}

  template <typename T>
  explicit accum(const vector<T, N>& v) {
    *this = v;
  }
  template <typename T>
  accum& operator=(const vector<T, N>& v) {
    static_assert(detail::is_floating<T>, "AIE: accfloat is filled from float or bfloat16");
    const auto& source = detail::host::lanes(v);
    for (unsigned lane = 0; lane < N; ++lane) {
      lanes_[lane] = source[lane];
    }
    return *this;
  }

  template <typename T>
  detail::narrowed<T, N> to_vector() const {
    if constexpr (std::is_same_v<T, bfp16ebs8>) {
      return detail::to_blocks(*this);
    } else {
      static_assert(std::is_same_v<T, float> || std::is_same_v<T, bfloat16>,
                    "AIE: accfloat becomes float or bfloat16");
      if constexpr (std::is_same_v<T, bfloat16>) detail::need_mode();
      return detail::generate<vector<T, N>>([this](unsigned lane) {
        if constexpr (std::is_same_v<T, float>) {
          return lanes_[lane];
        } else {
          return detail::bf16_of_bits(detail::round_to_bf16(std::bit_cast<uint32_t>(lanes_[lane])));
        }
      });
    }
  }

  template <typename T>
    requires(std::is_same_v<T, float> || std::is_same_v<T, bfloat16>)
  operator vector<T, N>() const {
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

 private:
  template <typename, unsigned>
  friend class accum;
  friend struct detail::host;
  detail::lanes_of<float, N> lanes_;
};

namespace detail {

template <typename X>
inline constexpr bool is_accum = false;
template <typename Tag, unsigned N>
inline constexpr bool is_accum<accum<Tag, N>> = true;

}  // namespace detail
}  // namespace aie
