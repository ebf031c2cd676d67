// A timeline of what targets do, for ui.perfetto.dev (in the Trace Event Format).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ort_aie {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  // A number that the timeline shows with an event, such as its bytes. A fact without a name is not
  // shown.
  struct Fact {
    const char* name = nullptr;
    int64_t value = 0;
  };
  using Facts = std::array<Fact, 5>;

  // The trace of this process. It is written when the last user has left it, and when the process
  // ends.
  static Trace& OfProcess();
  // In a library that is a target: use the trace with which it was opened.
  static void UseThatOf(Trace& trace);

  // Keeps the trace on as long as the returned object lives.
  std::shared_ptr<const void> Join();
  bool on() const { return users_.load(std::memory_order_relaxed) > 0; }

  // `category` is node, step, append, dispatch, sync, wait or host (docs/ryzen-ai.md explains
  // them). `node` is the name of a node in the model, or empty.
  void Add(const char* category, std::string_view name, std::string_view node, const Facts& facts,
           Time begin, Time end);

 private:
  struct Event {
    const char* category;
    const std::string *name, *node;  // in texts_
    int64_t begin, nanoseconds;      // since the trace began
    Facts facts;
    int thread;
  };

  Trace();
  static Trace& OfThisLibrary();
  const std::string* Keep(std::string_view text);
  void Write() noexcept;

  const Time start_ = Clock::now();
  const std::string path_;  // ORT_AIE_TRACE, else ort_aie_trace.json
  std::atomic<int> users_ = 0;
  std::mutex mutex_;
  std::set<std::string, std::less<>> texts_;  // each of them is in many events
  std::vector<Event> events_;
  int64_t left_out_ = 0;  // events beyond the limit
  bool written_ = true;
};

// An event from here to the end of the scope, if the trace is on. Texts must live as long as it
// does.
class TraceSpan {
 public:
  TraceSpan(const char* category, std::string_view name, std::string_view node = {},
            const Trace::Facts& facts = {})
      : on_(Trace::OfProcess().on()), category_(category), name_(name), node_(node), facts_(facts) {
    if (on_) begin_ = Trace::Clock::now();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  ~TraceSpan() {
    if (!on_) return;
    Trace::OfProcess().Add(category_, name_, node_, facts_, begin_, Trace::Clock::now());
  }
  // Drops the event, for example if the work was not done after all.
  void Drop() { on_ = false; }

 private:
  bool on_;
  const char* category_;
  std::string_view name_, node_;
  Trace::Facts facts_;
  Trace::Time begin_;
};

}  // namespace ort_aie
