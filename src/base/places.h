// Places in memory for objects that live for part of the time only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace ort_aie {

// Allocates ranges of an unbounded memory, and takes them back.
class Places {
 public:
  int64_t Take(int64_t bytes) {
    if (bytes == 0) return 0;
    for (auto free = free_.begin(); free != free_.end(); ++free) {
      if (free->second - free->first < bytes) continue;
      const int64_t place = free->first;
      free->first += bytes;
      if (free->first == free->second) free_.erase(free);
      return place;
    }
    return std::exchange(end_, end_ + bytes);
  }
  void Give(int64_t place, int64_t bytes) {
    if (bytes == 0) return;
    auto next = std::ranges::lower_bound(free_, place, {}, &std::pair<int64_t, int64_t>::first);
    next = free_.insert(next, {place, place + bytes});
    if (next + 1 != free_.end() && next->second == (next + 1)->first) {
      next->second = (next + 1)->second;
      free_.erase(next + 1);
    }
    if (next != free_.begin() && (next - 1)->second == next->first) {
      (next - 1)->second = next->second;
      free_.erase(next);
    }
  }
  int64_t end() const { return end_; }

 private:
  std::vector<std::pair<int64_t, int64_t>> free_;  // [first, end), ascending
  int64_t end_ = 0;
};

}  // namespace ort_aie
