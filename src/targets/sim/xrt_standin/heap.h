// The modelled device's memory: a memfd that the child maps too, and the free parts of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace ort_aie::sim {

inline constexpr size_t kPage = 4096;
// Neither zero nor a number: as bf16, fp16 or fp32 it is a NaN, and as an instruction it is
// illegal.
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

  // The offset of `bytes` of poison. Throws std::bad_alloc if no free part is large enough.
  size_t Allocate(size_t bytes);
  void Free(size_t offset, size_t bytes);

 private:
  int file_ = -1;
  uint8_t* base_ = nullptr;
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // bytes by offset; no two are adjacent
};

}  // namespace ort_aie::sim
