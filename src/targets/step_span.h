// A step in a trace: its kind, the node of the source, and its shape.
#pragma once

#include "ops/plan.h"
#include "targets/trace.h"

namespace ort_aie {

class StepSpan : public TraceSpan {
 public:
  // Step `step` of the plan: executed from here to the end of the scope ("step"), or put into a
  // batch for a device ("append").
  StepSpan(const char* category, const Plan& plan, size_t step);
};

// A whole plan, from here to the end of the scope.
class PlanSpan : public TraceSpan {
 public:
  explicit PlanSpan(const Plan& plan);
};

}  // namespace ort_aie
