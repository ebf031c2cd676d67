// Sequences of a manifest, interpreted for shapes and buffers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "npu/manifest.h"
#include "npu/shim_tasks.h"

namespace ort_aie::npu {

// Where an argument of a sequence is: in which buffer of the plan, and from which byte.
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

// Sequences to interpret one after the other, such as those of a layer.
using Invocations = std::vector<Invocation>;

// The operations between two places where a stream may be divided: a cut, or the end of an
// invocation.
struct Segment {
  std::vector<Operation> operations;  // a Push names an argument of the sequence, and bytes in it
  double seconds;                     // predicted
};

// An invocation, independent of where its arguments are.
struct Interpretation {
  std::vector<Segment> segments;
  size_t operations = 0, steps = 0;
};

// The limit for an invocation, and for a plan. No shape of a model comes near it: a prompt of
// 131,072 tokens has 0.4 million.
constexpr size_t kMaxOperations = size_t{1} << 21;

// Makes interpretations and keeps them. A plan of equal layers needs few, and most of them serve
// the next token too.
class Interpreter {
 public:
  explicit Interpreter(const Manifest& manifest) : manifest_(manifest) {}

  const Manifest& manifest() const { return manifest_; }

  // Throws Error, naming the sequence, its shape and the statement, if an invocation does not fit
  // the manifest, or asks for something that the device cannot do.
  std::shared_ptr<const Interpretation> Get(const Invocation& invocation);

  // Where the arguments of an invocation are, in the order of its sequence. Throws as Get does.
  std::vector<BufferView> Views(const Invocation& invocation) const;

 private:
  using Key = std::pair<std::string, std::map<std::string, int64_t>>;

  const Manifest& manifest_;
  std::map<Key, std::shared_ptr<const Interpretation>> made_;
  size_t operations_ = 0;  // of made_
};

// The message of the first requirement of its sequence that an invocation does not meet, of those
// before the first operation; empty if it meets them all. Throws Error if the manifest has no such
// sequence, or the invocation no such parameters.
std::string UnmetRequirement(const Manifest& manifest, const Invocation& invocation);

// The bytes of an invocation's argument, computed by its sequence. Throws as UnmetRequirement does.
int64_t ArgumentBytes(const Manifest& manifest, const Invocation& invocation,
                      std::string_view argument);

// "sequence "matvec" (K=2048, N=2048)", for messages.
std::string Describe(const Invocation& invocation);

}  // namespace ort_aie::npu
