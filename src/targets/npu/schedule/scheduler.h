// Where a call's work on an NPU is decided: which steps go to the device together, in which
// submissions and on which overlays, which the host does, and why. It needs no device and no
// memory: executor.h executes what it says, and `_npu` only reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "targets/npu/schedule/layers.h"
#include "targets/npu/schedule/scheduling.h"

namespace ort_aie::npu_target {

// The stages of a plan, one after the other:
//
//   while (!scheduler.done()) {
//     Stage stage = scheduler.Next();
//     ... run it ...
//     scheduler.Ran(stage);
//   }
//
// A stage that has failed changes nothing that it reads, so the next one may begin with the same
// step.
class Scheduler {
 public:
  // All must outlive the scheduler.
  Scheduler(const DeviceFacts& facts, DeviceContents& contents, const Plan& plan,
            const ThreadPool& threads);
  Scheduler(const Scheduler&) = delete;  // parts of it refer to it
  Scheduler& operator=(const Scheduler&) = delete;

  // Finds a token's layers, which then run whole if the overlay for that `works`. Returns why they
  // do not; empty if they do, or if there are none.
  std::string FindLayers(bool works = true);

  bool done() const { return next_ == plan_.steps.size(); }
  // Its batches are finished. Throws Error if a batch cannot be made: then call Refuse.
  Stage Next();
  // A stage of one step for the host, for a reason that the plan does not give.
  Stage OnHost(Reason reason) const;

  // The stage has run. Returns what divides its steps of the device from those before: the reasons
  // of the host's steps there, and of steps that could not follow the ones before them.
  std::vector<Reason> Ran(const Stage& stage);
  // The last stage, made or not, is one that the device does not take: an overlay refuses a shape.
  // Fewer steps will be tried, and at last the host does the first. Returns what was refused.
  enum class Refused { kLayers, kSeveralSteps, kOneStep };
  Refused Refuse();
  // The device has no room for the rows of so many steps. Returns false if it is only one.
  bool Divide(const Stage& stage);
  // What was on the device is lost. Whole layers, too, may be left out from now on.
  void Forget() { prompt_.Forget(); }
  bool NextIsLayers() const { return decoder_ && decoder_->first == next_; }
  void WithoutLayers() { decoder_.reset(); }

  // Why the device leaves a step to the host; kNone if it does not.
  Reason WhyNot(const Step& step) const;

 private:
  static constexpr size_t kAll = std::numeric_limits<size_t>::max();

  Stage Together(size_t end, Design design, bool layers);
  Reason WhyDivided(const Step& step, bool other, Design design, bool host_steps) const;
  void Divides(Reason reason);

  const DeviceFacts facts_;  // with the plan's overlays for prompts
  DeviceContents& contents_;
  const Plan& plan_;
  const ThreadPool& threads_;
  PromptWeights prompt_;
  std::optional<Decoder> decoder_;  // of a token, on an overlay of its own

  size_t next_ = 0;
  // How many steps may be tried together: after a refusal, and for all stages for want of room.
  size_t most_now_ = kAll, most_ = kAll;
  struct {
    size_t steps = 0;  // how many the last stage was to have
    bool layers = false;
  } tried_;
  bool refused_ = false;            // the next step alone
  bool on_device_ = false;          // whether the device has done steps
  std::vector<Reason> divided_by_;  // since then
};

}  // namespace ort_aie::npu_target
