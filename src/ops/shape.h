// The dimensions of a tensor, stored in place. Only more than kInPlace dimensions allocate memory,
// so a call of an op does not allocate just to read the sizes of its inputs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <vector>

namespace ort_aie {

class Shape {
 public:
  static constexpr size_t kInPlace = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(dims.begin(), dims.end()) {}
  template <typename Iterator>
  Shape(Iterator first, Iterator last) {
    resize(static_cast<size_t>(last - first));
    std::copy(first, last, begin());
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t* data() { return size_ <= kInPlace ? few_.data() : many_.data(); }
  const int64_t* data() const { return size_ <= kInPlace ? few_.data() : many_.data(); }
  int64_t* begin() { return data(); }
  int64_t* end() { return data() + size_; }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t& operator[](size_t axis) { return data()[axis]; }
  int64_t operator[](size_t axis) const { return data()[axis]; }
  int64_t& back() { return data()[size_ - 1]; }
  int64_t back() const { return data()[size_ - 1]; }

  // Keeps the dimensions up to `size`; new ones are 0.
  void resize(size_t size) {
    if (size > kInPlace) {
      if (size_ <= kInPlace) many_.assign(few_.begin(), few_.begin() + size_);
      many_.resize(size);
    } else {
      if (size_ > kInPlace) std::copy_n(many_.begin(), size, few_.begin());
      std::fill(few_.begin() + std::min(size, size_), few_.begin() + size, 0);
    }
    size_ = size;
  }
  void push_back(int64_t dim) {
    resize(size_ + 1);
    back() = dim;
  }
  void clear() { size_ = 0; }

  friend bool operator==(const Shape& a, const Shape& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  // In the form used in errors: (2, 3).
  friend std::ostream& operator<<(std::ostream& out, const Shape& shape) {
    out << '(';
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      out << (axis != 0 ? ", " : "") << shape[axis];
    }
    return out << ')';
  }

 private:
  size_t size_ = 0;
  std::array<int64_t, kInPlace> few_{};  // for up to kInPlace dimensions
  std::vector<int64_t> many_;            // for more
};

}  // namespace ort_aie
