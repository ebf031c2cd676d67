// A step as a trace shows it: its kind, the node of the source, and its shape.
#pragma once

#include "ops/plan.h"
#include "targets/trace.h"

namespace ort_aie {

class StepSpan : public TraceSpan {
 public:
  // Step `step` of the plan: done from here to the end of the scope ("step"), or put into a batch
  // for a device ("append").
  StepSpan(const char* category, const Plan& plan, size_t step);
};

// All of a plan, from here to the end of the scope.
class PlanSpan : public TraceSpan {
 public:
  explicit PlanSpan(const Plan& plan);
};

}  // namespace ort_aie
