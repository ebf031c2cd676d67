// From a tap of a buffer (offset, run, outer dimensions, in bytes) to the shim tasks that move it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "npu/registers.h"

namespace ort_aie::npu {

struct Dimension {
  int64_t count;
  int64_t stride;
};

// From byte `offset` on: `run` contiguous bytes for every index of `outer`, outermost first.
struct Tap {
  int64_t offset;
  int64_t run;
  std::vector<Dimension> outer;
};

// One push to a task queue: a descriptor and how often it runs. Strides and lengths are words.
struct Task {
  int64_t offset;                 // bytes
  int64_t length;                 // words that one run moves
  std::array<Dimension, 3> data;  // innermost first; all of count 1 when the task is linear
  int64_t iteration_step;         // words between runs; 0 when every run starts at the same place
  int runs;                       // how often the queue runs it

  int64_t bytes() const { return 4 * length * runs; }
  int64_t contiguous() const;  // bytes of the longest run without a gap
  int64_t end() const;         // the byte after the last that any run touches
};

// The tasks of a tap, in the order in which the bytes move; none if a count or the run is 0. Every
// byte must be in a buffer of `buffer_bytes`. Throws Error, naming the dimension, the limit and the
// use, if the shim's descriptors cannot express the tap, or if it would need more than `most`
// tasks.
std::vector<Task> PlanTasks(const Tap& tap, int64_t buffer_bytes, int64_t most);

// The descriptor of a task with a base address of 0, which an address patch fills.
ShimDescriptorWords DescriptorWords(const Task& task, int generation, std::optional<int> packet);

}  // namespace ort_aie::npu
