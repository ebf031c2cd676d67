// The modelled device's memory: a memfd that the child maps too, and what is free in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace ort_aie::sim {

inline constexpr size_t kPage = 4096;
// Neither zero nor a number: every bf16, fp16 and fp32 of it is a NaN, and no instruction is legal.
inline constexpr int kPoison = 0xFF;

inline size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

class Heap {
 public:
  Heap();
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  int file() const { return file_; }
  uint8_t* at(size_t offset) const { return base_ + offset; }

  // The offset of `bytes` of poison. Throws std::bad_alloc when nothing that large is free.
  size_t Allocate(size_t bytes);
  void Free(size_t offset, size_t bytes);

 private:
  int file_ = -1;
  uint8_t* base_ = nullptr;
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // bytes by offset; no two touch
};

}  // namespace ort_aie::sim
