// What a target does when, as a timeline that ui.perfetto.dev opens (the Trace Event Format).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace ort_aie::npu_target {

class Trace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The one of this process. What it holds is written when the last of those who asked for it has
  // left, and when the process ends.
  static Trace& OfProcess();
  ~Trace() { Write(); }

  void Join();
  void Leave();
  bool on() const { return users_.load(std::memory_order_relaxed) > 0; }

  // `category` is node, dispatch, sync, wait or host. Bytes below 0 are not shown.
  void Add(const char* category, std::string_view name, Time begin, Time end, int64_t bytes = -1);

 private:
  struct Event {
    const char* category;
    std::string name;
    int64_t begin, nanoseconds;  // since the trace began
    int64_t bytes;
    int thread;
  };

  Trace();
  void Write() noexcept;

  const Time start_ = std::chrono::steady_clock::now();
  const std::string path_;  // ORT_AIE_TRACE, else ort_aie_trace.json
  std::atomic<int> users_ = 0;
  std::mutex mutex_;
  std::vector<Event> events_;
  int64_t left_out_ = 0;  // events beyond the most that are kept
  bool written_ = true;
};

// From here to the end of the scope, if anybody wants to know.
class Span {
 public:
  Span(const char* category, std::string_view name, int64_t bytes = -1)
      : on_(Trace::OfProcess().on()), category_(category), bytes_(bytes) {
    if (!on_) return;
    name_ = name;
    begin_ = std::chrono::steady_clock::now();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  ~Span() {
    if (!on_) return;
    Trace::OfProcess().Add(category_, name_, begin_, std::chrono::steady_clock::now(), bytes_);
  }

 private:
  const bool on_;
  const char* category_;
  std::string name_;
  Trace::Time begin_;
  int64_t bytes_;
};

}  // namespace ort_aie::npu_target
