// What the makers of batches work with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ops/plan.h"
#include "targets/npu/schedule/batch.h"
#include "targets/npu/schedule/device_contents.h"
#include "targets/npu/schedule/facts.h"
#include "targets/npu/schedule/prompt_weights.h"
#include "targets/npu/schedule/reasons.h"

namespace ort_aie::npu_target {

// A call of a plan on a device.
struct Scheduling {
  const DeviceFacts& facts;
  DeviceContents& contents;
  const Plan& plan;
  const ThreadPool& threads;
  PromptWeights& prompt;
  // Why the last step could not be added to a batch, if it is not what the batch has.
  Reason divides = Reason::kNone;
};

// Steps [first, end) of a plan: one on the host, or batches for the device, one after the other.
struct Stage {
  enum class Kind {
    kHost,      // one step, for `reason`
    kExperts,   // one step, whose projections are a plan of their own
    kTogether,  // one batch, of all steps but those in `before` and `after`
    kAlone,     // one step, in several batches
  };
  Kind kind = Kind::kHost;
  size_t first = 0, end = 0;
  Reason reason = Reason::kNone;
  std::vector<std::unique_ptr<Batch>> batches = {};
  bool layers = false;  // whole layers and a vocabulary, on the overlay for them
  bool prompt = false;  // its rows are too large to be kept for the next call
  int64_t device_steps = 0;
  // Why the host does others, and why the step that follows is not in the batch.
  std::vector<Reason> before = {}, after = {};
  Reason divides = Reason::kNone;
  std::shared_ptr<void> keep = nullptr;  // until all batches have run

  Batch& Add(const ThreadPool& threads, const Arena& temporaries = {},
             Batch::OneContext one_context = {}) {
    return *batches.emplace_back(
        std::make_unique<Batch>(threads, temporaries, std::move(one_context)));
  }
};

// One step of a plan, for the host.
inline Plan OneStep(const Plan& plan, size_t step) {
  Plan one = {plan.steps[step]};
  one.node = plan.NameOf(step);
  return one;
}

}  // namespace ort_aie::npu_target
