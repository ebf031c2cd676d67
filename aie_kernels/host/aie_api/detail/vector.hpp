// aie::vector, aie::mask and references to lanes.
#pragma once

#include "rounding.hpp"

namespace aie {

namespace detail {

template <typename T>
struct element_traits {
  static constexpr bool exists = false;
  static constexpr unsigned bits = 8;
};

template <typename T, unsigned Bits, bool Floating>
struct element {
  static constexpr bool exists = true;
  static constexpr unsigned bits = Bits;
  static constexpr bool floating = Floating;
  // Four-bit lanes lie in pairs in a byte.
  using storage = std::conditional_t<Bits == 4, uint8_t, T>;
  static constexpr unsigned storages(unsigned lanes) { return Bits == 4 ? lanes / 2 : lanes; }
};

template <>
struct element_traits<uint4> : element<uint4, 4, false> {};
template <>
struct element_traits<uint8> : element<uint8, 8, false> {};
template <>
struct element_traits<uint16> : element<uint16, 16, false> {};
template <>
struct element_traits<int32> : element<int32, 32, false> {};
template <>
struct element_traits<bfloat16> : element<bfloat16, 16, true> {};
template <>
struct element_traits<float> : element<float, 32, true> {};

template <typename T>
inline constexpr unsigned bits_of = element_traits<T>::bits;
template <typename T>
inline constexpr bool is_floating = element_traits<T>::floating;
template <typename T>
inline constexpr bool is_four_bit = element_traits<T>::bits == 4;

constexpr bool is_power_of_two(unsigned n) { return std::has_single_bit(n); }

struct host;  // the stand-in's own door to lanes

template <typename Storage, unsigned N>
struct alignas(sizeof(Storage) * N < 32 ? sizeof(Storage) * N : 32) lanes_of
    : std::array<Storage, N> {};

// Lanes never written are all ones: NaN as a float, so that a kernel that reads them is noticed.
template <typename Lanes>
void make_undefined(Lanes& lanes) {
  std::memset(static_cast<void*>(&lanes), 0xFF, sizeof lanes);
}
struct unfilled {};

}  // namespace detail

template <typename T, unsigned N>
class vector;

// One lane: a scalar operand that the chip broadcasts without extracting it.
template <typename T, unsigned N>
class vector_elem_const_ref {
 public:
  operator T() const { return get(); }
  T get() const { return parent_.get(lane_); }

 private:
  friend class vector<T, N>;
  vector_elem_const_ref(const vector<T, N>& parent, unsigned lane) : parent_(parent), lane_(lane) {}

  const vector<T, N>& parent_;
  unsigned lane_;
};

template <typename T, unsigned N>
class vector {
  using traits = detail::element_traits<T>;
  static_assert(traits::exists, "AIE: no vectors of this element type");
  static_assert(detail::is_power_of_two(N), "AIE: the lane count must be a power of two");
  static_assert(traits::bits * N >= 128, "AIE: a vector has at least 128 bits");

 public:
  vector() { detail::make_undefined(lanes_); }
  explicit vector(detail::unfilled) {}

  static constexpr unsigned size() { return N; }

  T get(unsigned lane) const {
    static_assert(!detail::is_four_bit<T>, "AIE: unpack four-bit lanes first");
    detail::check(lane < N, "vector::get of a lane beyond the vector");
    return lanes_[lane];
  }

  vector_elem_const_ref<T, N> operator[](unsigned lane) const { return {*this, lane}; }

  // Part number `part` of N / M.
  template <unsigned M>
  vector<T, M> extract(unsigned part) const {
    static_assert(M <= N, "AIE: extract cannot widen; use grow");
    detail::check(part < N / M, "vector::extract of a part beyond the vector");
    vector<T, M> result{detail::unfilled{}};
    std::memcpy(static_cast<void*>(&result.lanes_), lanes_.data() + part * traits::storages(M),
                sizeof result.lanes_);
    return result;
  }

  template <unsigned M>
  vector& insert(unsigned part, const vector<T, M>& sub) {
    static_assert(M <= N, "AIE: the inserted vector is wider than its target");
    detail::check(part < N / M, "vector::insert of a part beyond the vector");
    std::memcpy(static_cast<void*>(lanes_.data() + part * traits::storages(M)), &sub.lanes_,
                sizeof sub.lanes_);
    return *this;
  }

  template <unsigned M>
  vector<T, M> grow_replicate() const {
    static_assert(M >= N, "AIE: grow_replicate cannot narrow");
    vector<T, M> result{detail::unfilled{}};
    for (unsigned part = 0; part < M / N; ++part) {
      result.insert(part, *this);
    }
    return result;
  }

  template <typename U>
  vector<U, N * traits::bits / detail::bits_of<U>> cast_to() const {
    vector<U, N * traits::bits / detail::bits_of<U>> result{detail::unfilled{}};
    static_assert(sizeof result.lanes_ == sizeof lanes_);
    std::memcpy(static_cast<void*>(&result.lanes_), &lanes_, sizeof lanes_);
    return result;
  }

  auto unpack() const;

 private:
  template <typename, unsigned>
  friend class vector;
  friend struct detail::host;
  detail::lanes_of<typename traits::storage, traits::storages(N)> lanes_;
};

template <unsigned N>
class mask {
  static_assert(detail::is_power_of_two(N), "AIE: the lane count must be a power of two");

 public:
  mask() { lanes_.fill(0); }

  static mask from_uint32(uint32_t bits)
    requires(N <= 32)
  {
    mask result;
    for (unsigned lane = 0; lane < N; ++lane) {
      result.lanes_[lane] = (bits >> lane) & 1;
    }
    return result;
  }

  bool full() const { return std::ranges::count(lanes_, 1) == N; }
  mask operator&(const mask& other) const {
    mask result;
    for (unsigned lane = 0; lane < N; ++lane) {
      result.lanes_[lane] = lanes_[lane] & other.lanes_[lane];
    }
    return result;
  }

 private:
  friend struct detail::host;
  std::array<uint8_t, N> lanes_;
};

namespace detail {

struct host {
  template <typename V>
  static auto& lanes(V& v) {
    return v.lanes_;
  }
  template <typename V>
  static const auto& lanes(const V& v) {
    return v.lanes_;
  }
};

// A vector or accumulator of f(lane).
template <typename V, typename F>
V generate(F f) {
  V result{unfilled{}};
  auto& lanes = host::lanes(result);
  for (unsigned lane = 0; lane < V::size(); ++lane) {
    lanes[lane] = f(lane);
  }
  return result;
}

template <unsigned N, typename F>
mask<N> generate_mask(F f) {
  mask<N> result;
  auto& lanes = host::lanes(result);
  for (unsigned lane = 0; lane < N; ++lane) {
    lanes[lane] = f(lane) ? 1 : 0;
  }
  return result;
}

// An operand of an elementwise function: a vector, or a scalar for all lanes.
template <typename X>
struct operand {
  static constexpr bool is_vector = false;
  static constexpr unsigned lanes = 0;
  using element = X;
};
template <typename T, unsigned N>
struct operand<vector<T, N>> {
  static constexpr bool is_vector = true;
  static constexpr unsigned lanes = N;
  using element = T;
};
template <typename T, unsigned N>
struct operand<vector_elem_const_ref<T, N>> : operand<T> {};

template <typename X>
using element_of = typename operand<X>::element;

template <typename A, typename B>
inline constexpr unsigned common_lanes =
    operand<A>::is_vector ? operand<A>::lanes : operand<B>::lanes;

template <typename A, typename B>
constexpr void check_operands() {
  static_assert(operand<A>::is_vector || operand<B>::is_vector,
                "AIE: one operand at least must be a vector");
  static_assert(
      !operand<A>::is_vector || !operand<B>::is_vector || operand<A>::lanes == operand<B>::lanes,
      "AIE: operands have different lane counts");
}

// Scalars too: the API converts none of them.
template <typename A, typename B>
constexpr void check_same_elements() {
  static_assert(std::is_same_v<element_of<A>, element_of<B>>,
                "AIE: operands have different element types");
}

// Lane i of a vector, or the scalar, as a callable.
template <typename T, typename X>
auto reader(const X& x) {
  if constexpr (operand<X>::is_vector) {
    return [&lanes = host::lanes(x)](unsigned lane) -> T { return lanes[lane]; };
  } else {
    return [value = static_cast<T>(static_cast<element_of<X>>(x))](unsigned) -> T { return value; };
  }
}

}  // namespace detail
}  // namespace aie
