// Work that reads memory, in runs as long as possible: a CPU fetches far ahead only within one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "q4nx/layout.h"
#include "targets/target.h"

namespace ort_aie::host {

// The most threads that sections of the calling thread have had at once, because ONNX Runtime does
// not say how many it has. 0: not known.
inline int64_t& ThreadsSeen() {
  thread_local int64_t seen = 0;
  return seen;
}

// Calls task(first, n) for runs that make up [0, count). Each is what remains, divided by the
// number of threads, but at least `least`: the longest come first, and the short ones at the end
// leave no thread without work (guided self-scheduling, Polychronopoulos and Kuck, 1987).
template <typename Task>
void InRuns(int64_t count, int64_t least, const ThreadPool& threads, const Task& task) {
  static const int64_t processors = std::max<int64_t>(1, std::thread::hardware_concurrency());
  int64_t& seen = ThreadsSeen();
  const int64_t share = seen == 0 ? processors : seen;
  std::atomic<int64_t> next = 0, now = 0, most = seen;
  threads.ParallelFor(std::min(q4nx::CeilDiv(count, least), processors), [&](int64_t) {
    const int64_t at_once = now.fetch_add(1) + 1;
    int64_t before = most;
    while (before < at_once && !most.compare_exchange_weak(before, at_once)) {
    }
    int64_t first = next;
    while (first < count) {
      const int64_t n = std::min(count - first, std::max(least, (count - first) / share));
      if (!next.compare_exchange_weak(first, first + n)) continue;
      task(first, n);
      first = next;
    }
    now.fetch_sub(1);
  });
  seen = most;
}

}  // namespace ort_aie::host
