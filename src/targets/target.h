// A target executes plans. It never learns about ONNX.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>

#include "ops/plan.h"

namespace ort_aie {

// The caller's threads: ONNX Runtime's intra-op pool, or only the calling thread.
class ThreadPool {
 public:
  virtual ~ThreadPool() = default;

  // A parallel section costs more than it gains if its total work is below kWorthSectionNs; a task
  // should have at least kTaskNs. On a Zen 5, a section costs ONNX Runtime about 0.5 us while its
  // threads wait for work, and about 20 us when they sleep; each of its tasks costs 20 to 50 ns.
  static constexpr int64_t kWorthSectionNs = 2000;
  static constexpr int64_t kTaskNs = 500;

  // ParallelFor of items that take one thread of a current core about item_ns each. The calling
  // thread does all of them if that is faster; else each task gets so many items that it is worth
  // its cost.
  template <typename Task>
  void ParallelFor(int64_t count, int64_t item_ns, const Task& task) const {
    const int64_t total_ns = count * item_ns;
    const int64_t tasks = total_ns < kWorthSectionNs ? 1 : std::min(count, total_ns / kTaskNs);
    const auto run = [&](int64_t i) {
      for (int64_t item = count * i / tasks; item < count * (i + 1) / tasks; ++item) task(item);
    };
    if (tasks == 1) return run(0);
    ParallelFor(tasks, run);
  }

  // Calls task(i) for each i in [0, count), in any order, and returns when all are done. A task may
  // throw, although it runs on threads of another library: the first exception is thrown here, and
  // tasks that have not begun by then are skipped.
  template <typename Task>
  void ParallelFor(int64_t count, const Task& task) const {
    struct Job {
      const Task& task;
      std::atomic<bool> failed = false;
      std::exception_ptr error = nullptr;  // the thread that sets `failed` writes it
    } job{task};
    const auto one = [](void* data, int64_t i) noexcept {
      auto& j = *static_cast<Job*>(data);
      if (j.failed.load(std::memory_order_relaxed)) return;
      try {
        j.task(i);
      } catch (...) {
        if (!j.failed.exchange(true)) j.error = std::current_exception();
      }
    };
    Run(count, one, &job);
    if (job.error != nullptr) std::rethrow_exception(job.error);
  }

 protected:
  using Call = void (*)(void* job, int64_t index) noexcept;
  virtual void Run(int64_t count, Call call, void* job) const = 0;
};

class InlineThreadPool final : public ThreadPool {
 protected:
  void Run(int64_t count, Call call, void* job) const override {
    for (int64_t i = 0; i < count; ++i) call(job, i);
  }
};

class Target {
 public:
  virtual ~Target() = default;
  virtual const char* Name() const = 0;
  // Whether it reads weights in this form where they are, instead of a copy in another.
  virtual bool ReadsInPlace(const WeightForm&) const { return true; }
  virtual void Execute(const Plan& plan, const ThreadPool& threads) const = 0;
};

// This CPU. Stateless: one object serves all sessions of a process.
const Target& HostTarget();
// The same, for a session: it tries kernels that give the same bits on the session's own work, and
// uses the fastest (host/live_trials.h).
std::shared_ptr<const Target> HostTargetWithTrials();
// The instruction set of its kernels, by its name in ORT_AIE_ISA.
const char* HostIsa();

}  // namespace ort_aie
