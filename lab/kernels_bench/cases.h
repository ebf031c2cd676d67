// What kernels_bench measures: a line per kernel, and the data that the kernels use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {

constexpr int64_t kMaxK = 8192;        // in-features of the projections
constexpr int64_t kStreamedRows = 17;  // the most rows for which weights are streamed

enum class Limit { kMemory, kL1, kFp32, kBf16, kInt8 };

// The work of one call: bytes read and written, if they are the limit, and operations.
struct Work {
  double bytes = 0, flops = 0;
};

template <typename T>
struct Bench {
  const char* name;
  Limit limit;
  const char* unit;  // of the sizes
  std::vector<int64_t> sizes;
  Work (*run)(const Kernels& kernels, T& data, int64_t size);
};

// Page-aligned arrays, which live as long as the arena.
class Arena {
 public:
  template <typename T>
  T* New(int64_t count, T value) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 4095) / 4096 * 4096;
    T* array = static_cast<T*>(std::aligned_alloc(4096, bytes));
    if (array == nullptr) throw std::bad_alloc();
    arrays_.emplace_back(array);
    std::fill_n(array, count, value);
    return array;
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<void, Free>> arrays_;
};

// Bytes of blocks, many times larger than the last cache: every read of them comes from memory.
class Weights {
 public:
  Weights();
  std::span<const uint8_t> blocks() const { return blocks_; }

 private:
  Arena arena_;
  std::span<const uint8_t> blocks_;
};

// Weights to stream through, and a few rows of activations. Their values do not matter, as long as
// they are ordinary numbers.
struct Streamed {
  explicit Streamed(std::span<const uint8_t> weights);
  // The next row of blocks of so many bytes; after the last, the first again.
  const uint8_t* NextRow(int64_t bytes);

  Arena arena;
  std::span<const uint8_t> weights;
  size_t next = 0;  // byte of weights
  float *x, *sums, *scales, *y;
  int8_t* codes;
  int32_t* q_sums;
  uint8_t* tables;  // of lookups, for all numerics
};

// What all other kernels need in addition; several megabytes.
struct Cached : Streamed {
  explicit Cached(std::span<const uint8_t> weights);

  uint16_t *halves, *a, *panel;
  uint8_t* a_codes;
  float *a_scales, *panel_scales, *panel_mins;
  int32_t *a_sums, *panel_offsets;
  int8_t* panel_codes;
  float *queries, *keys, *scores, *output, *scratch;  // of attention
};

std::span<const Bench<Streamed>> StreamedBenches();  // also measured on all threads
std::span<const Bench<Cached>> CachedBenches();

}  // namespace ort_aie::host
