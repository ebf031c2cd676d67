// aie::block_vector of bfp16ebs8 (AIE2P): its conversion, its streams from and to memory, its
// product.
//
// Eight values share an exponent byte e; value i is mantissa[i] * 2^(e - 133). The conversion is
// that of ort_aie_ep/formats/bfp16.py, which names its sources.
#pragma once

#include <algorithm>

#include "accum.hpp"
#include "memory.hpp"

namespace aie {

namespace detail {
struct blocks;
}

template <typename T, unsigned N>
class block_vector {
  static_assert(N != 0 && detail::is_aie2p, "AIE: block vectors need AIE2P");
  static_assert(std::is_same_v<T, bfp16ebs8>, "AIE: the stand-in has blocks of bfp16ebs8 only");
  static_assert(N == 64, "AIE: the stand-in has block vectors of 64 only");

 public:
  static constexpr unsigned size() { return N; }
  static constexpr unsigned memory_bytes() { return N / 8 * 9; }

  // Blocks never written are all ones: values of -2^122, so that a kernel that reads them is
  // noticed.
  block_vector() { detail::make_undefined(blocks_); }

 private:
  friend struct detail::blocks;
  struct block {
    uint8_t exponent;
    std::array<int8_t, 8> mantissa;
  };
  static_assert(sizeof(block) == 9);
  std::array<block, N / 8> blocks_;
};

namespace detail {

// The stand-in's own door to blocks.
struct blocks {
  template <typename V>
  static auto& of(V& v) {
    return v.blocks_;
  }
  template <typename Block>
  static Block round(const float* values) {
    need_mode();
    std::array<uint32_t, 8> bits;
    uint32_t largest = 0;
    for (unsigned i = 0; i < 8; ++i) {
      bits[i] = std::bit_cast<uint32_t>(values[i]);
      largest = std::max(largest, (bits[i] >> 23) & 0xFF);
    }
    std::array<int, 8> mantissas;
    // Returns the greatest mantissa of a block with this exponent.
    const auto fill = [&](uint32_t shared) {
      int greatest = 0;
      for (unsigned i = 0; i < 8; ++i) {
        const uint32_t exponent = (bits[i] >> 23) & 0xFF;
        const uint64_t significand = exponent == 0 ? 0 : (bits[i] & 0x7FFFFF) | 0x800000;
        // A shift of 41 leaves less than a quarter of the last bit: more makes no difference.
        const uint32_t gap = shared - exponent;
        const uint64_t aligned = significand << (gap < 24 ? 24 - gap : 0);
        const auto magnitude = static_cast<int>(round_to_even<41>(aligned));
        mantissas[i] = bits[i] >> 31 != 0 ? -magnitude : magnitude;
        greatest = std::max(greatest, mantissas[i]);
      }
      return greatest;
    };
    if (fill(largest) > 127 && largest < 255) {  // assumed for 254, like what follows for 255
      fill(++largest);
    }
    Block result;
    result.exponent = static_cast<uint8_t>(largest);
    for (unsigned i = 0; i < 8; ++i) {
      result.mantissa[i] = static_cast<int8_t>(std::clamp(mantissas[i], -128, 127));
    }
    return result;
  }
};

template <unsigned N>
block_vector<bfp16ebs8, N> to_blocks(const accum<accfloat, N>& values) {
  block_vector<bfp16ebs8, N> result;
  auto& all = blocks::of(result);
  for (unsigned i = 0; i < N / 8; ++i) {
    all[i] = blocks::round<std::remove_reference_t<decltype(all[i])>>(host::lanes(values).data() +
                                                                      i * 8);
  }
  return result;
}

// c (8 x 8) += a (8 x 8) * b^T (8 x 8): exact dots of eight, added to the fp32 sum with one
// rounding. The dots are published for sums that fp32 holds exactly; how others round is assumed.
template <typename Blocks>
void add_block_dots(const Blocks& a, const Blocks& b, accum<accfloat, 64>& c) {
  auto& sums = host::lanes(c);
  for (unsigned m = 0; m < 8; ++m) {
    const auto& row = blocks::of(a)[m];
    for (unsigned n = 0; n < 8; ++n) {
      const auto& column = blocks::of(b)[n];
      int dot = 0;
      for (unsigned k = 0; k < 8; ++k) {
        dot += row.mantissa[k] * column.mantissa[k];
      }
      // 2^(e_a + e_b - 266), never a subnormal double.
      const auto power = static_cast<uint64_t>(row.exponent + column.exponent - 266 + 1023);
      const double exact = dot * std::bit_cast<double>(power << 52);
      sums[m * 8 + n] = round_to_f32(exact + static_cast<double>(sums[m * 8 + n]));
    }
  }
}

// Streams go through a register that aligned loads or stores of 64 bytes fill. What begins
// elsewhere has been seen to read other blocks (mlir-aie's notes on pop_seek), so here it throws.
template <typename Byte>
class block_stream {
 public:
  block_stream(Byte* start) : at_(start) {
    check_aligned(at_, 64, "a stream of blocks from a misaligned address");
  }
  Byte* next(unsigned bytes) { return std::exchange(at_, at_ + bytes); }

 private:
  Byte* at_;
};

}  // namespace detail

template <typename T, unsigned N>
class block_vector_input_buffer_stream {
  static_assert(N != 0 && detail::is_aie2p, "AIE: block vectors need AIE2P");

 public:
  block_vector_input_buffer_stream(const T* start)
      : stream_(reinterpret_cast<const uint8_t*>(start)) {}

  block_vector<T, N> pop() {
    block_vector<T, N> result;
    std::memcpy(&detail::blocks::of(result), stream_.next(bytes), bytes);
    return result;
  }

 private:
  static constexpr unsigned bytes = block_vector<T, N>::memory_bytes();
  detail::block_stream<const uint8_t> stream_;
};

template <typename T, unsigned N>
class block_vector_output_buffer_stream {
  static_assert(N != 0 && detail::is_aie2p, "AIE: block vectors need AIE2P");

 public:
  block_vector_output_buffer_stream(T* start) : stream_(reinterpret_cast<uint8_t*>(start)) {}

  void push(const block_vector<T, N>& v) {
    std::memcpy(stream_.next(bytes), &detail::blocks::of(v), bytes);
  }

 private:
  static constexpr unsigned bytes = block_vector<T, N>::memory_bytes();
  detail::block_stream<uint8_t> stream_;
};

}  // namespace aie

#if __AIE_ARCH__ == 21
// The intrinsic that AMD's kernels call: c (8 x 8) + a (8 m x 8 k) * b (8 n x 8 k)^T.
inline aie::accum<accfloat, 64> mac_8x8_8x8T(const aie::block_vector<bfp16ebs8, 64>& a,
                                             const aie::block_vector<bfp16ebs8, 64>& b,
                                             aie::accum<accfloat, 64> c) {
  aie::detail::add_block_dots(a, b, c);
  return c;
}
#endif
