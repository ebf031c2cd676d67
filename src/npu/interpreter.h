// Sequences of a manifest, interpreted for shapes and buffers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "npu/manifest.h"
#include "npu/schedule.h"

namespace ort_aie::npu {

// Where an argument of a sequence lies: in which buffer of the plan, from which byte.
struct BufferView {
  int argument;
  int64_t offset;
  bool operator==(const BufferView&) const = default;
};

struct Invocation {
  std::string sequence;
  std::map<std::string, int64_t> parameters;
  std::map<std::string, BufferView> arguments;
  bool operator==(const Invocation&) const = default;
};

// Sequences to go through one after the other, such as those of a layer.
using Plan = std::vector<Invocation>;

// What lies between two places where a stream may be divided: a cut, or the end of an invocation.
struct Segment {
  std::vector<Operation> operations;
  double seconds;  // predicted
};

// Raises, naming the sequence, its shape and the statement, for a plan that does not fit the
// manifest and for what the device cannot do.
std::vector<Segment> Interpret(const Manifest& manifest, const Plan& plan);

// "sequence "matvec" (K=2048, N=2048)", for messages.
std::string Describe(const Invocation& invocation);

}  // namespace ort_aie::npu
