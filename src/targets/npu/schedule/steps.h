// What a schedule does with each kind of step: one handler for each.
#pragma once

#include <span>

#include "targets/npu/schedule/scheduling.h"

namespace ort_aie::npu_target {

struct StepHandler {
  // Why the device leaves the step to the host.
  Reason (*why_not)(const Step& step, const HasOverlay& has);
  // The overlay of the batch that it can join; empty: it is a stage alone.
  Design (*design)(const DeviceFacts& facts, const Plan& plan, const Step& step);
  // Adds the first of `steps`, the rest of the plan, to a batch that begins with `design`. Returns
  // false, and changes nothing, if the batch has to run first. The batch's work reads the step.
  bool (*append)(Scheduling& scheduling, Batch& batch, Design design,
                 std::span<const Step> steps) = nullptr;
  // The overlay of a batch that it can join, but not begin.
  Design (*joins)(const DeviceFacts& facts, const Step& step) = nullptr;
  // Fills the stage of a step alone.
  void (*alone)(Scheduling& scheduling, const Step& step, Stage& stage) = nullptr;
  // A step between projections: if its input is on the host, the host does it.
  bool between = false;
};

const StepHandler& HandlerOf(const Step& step);

// Appends a step that selects a row which the batch leaves on the device.
bool AppendIfSelection(Batch& batch, const Step& step);

inline bool IsExperts(const Step& step) { return std::holds_alternative<MoEStep>(step); }

}  // namespace ort_aie::npu_target
