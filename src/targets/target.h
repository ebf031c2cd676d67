// A target executes plans. It never learns what ONNX is.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "ops/plan.h"

namespace ort_aie {

// Threads of whoever calls: ONNX Runtime's intra-op pool, or the calling thread alone.
class ThreadPool {
 public:
  virtual ~ThreadPool() = default;

  // Calls task(i) for each i in [0, count), in any order, and returns when all are done. A task
  // must not throw: it runs on threads of another library.
  template <typename Task>
  void ParallelFor(int64_t count, const Task& task) const {
    static_assert(std::is_nothrow_invocable_v<const Task&, int64_t>);
    Run(count, [](const void* t, int64_t i) noexcept { (*static_cast<const Task*>(t))(i); }, &task);
  }

 protected:
  using Call = void (*)(const void* task, int64_t index) noexcept;
  virtual void Run(int64_t count, Call call, const void* task) const = 0;
};

class InlineThreadPool final : public ThreadPool {
 protected:
  void Run(int64_t count, Call call, const void* task) const override {
    for (int64_t i = 0; i < count; ++i) call(task, i);
  }
};

class Target {
 public:
  virtual ~Target() = default;
  virtual const char* Name() const = 0;
  virtual void Execute(const Plan& plan, const ThreadPool& threads) const = 0;
};

// This CPU. Stateless: one object serves all sessions of a process.
const Target& HostTarget();

}  // namespace ort_aie
