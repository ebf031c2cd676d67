#include "npu/stream.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "npu/txn.h"

namespace ort_aie::npu {
namespace {

// The buffers that every run of a plan has: all of them, if a run can have as many.
std::vector<int> SharedBuffers(const Plan& plan) {
  int count = 0;
  for (const Invocation& invocation : plan) {
    for (const auto& [name, view] : invocation.arguments) {
      count = std::max(count, view.argument + 1);
    }
  }
  std::vector<int> buffers(static_cast<size_t>(count) <= kRunBuffers ? count : 0);
  std::iota(buffers.begin(), buffers.end(), 0);
  return buffers;
}

// Operations become words.
class RunEncoder {
 public:
  RunEncoder(const Manifest& manifest, const std::vector<int>& buffers)
      : txn_({manifest.generation, manifest.rows, manifest.columns}) {
    run_.buffers = buffers;
  }

  // Whether the run can have the buffers of a segment; then it has.
  bool Take(const Segment& segment) {
    std::vector<int> buffers = run_.buffers;
    for (const Operation& operation : segment.operations) {
      const Push* push = std::get_if<Push>(&operation.what);
      if (push != nullptr && std::ranges::find(buffers, push->argument) == buffers.end()) {
        if (buffers.size() == kRunBuffers) return false;
        buffers.push_back(push->argument);
      }
    }
    run_.buffers = std::move(buffers);
    return true;
  }

  void Encode(const Operation& operation) {
    std::visit([&](const auto& what) { Encode(what); }, operation.what);
    run_.sources.resize(txn_.operations(), operation.source);
  }

  Run Finish(double predicted_seconds) && {
    run_.words = std::move(txn_).Finish();
    run_.predicted_seconds = predicted_seconds;
    return std::move(run_);
  }

 private:
  void Variable(size_t word) { run_.variable.push_back(static_cast<uint32_t>(word)); }

  void Encode(const ParameterWrite& write) {
    Variable(txn_.Write(write.address, static_cast<uint32_t>(write.value)));
  }

  void Encode(const LockWrite& write) { txn_.Write(write.address, write.value); }

  void Encode(const Push& push) {
    const uint32_t descriptor = ShimDescriptor(push.column, push.descriptor);
    Variable(txn_.BlockWrite(descriptor, push.words));  // word 0 is the length
    const auto argument = std::ranges::find(run_.buffers, push.argument) - run_.buffers.begin();
    const size_t plus =
        txn_.AddressPatch(descriptor + kAddressWordBytes, static_cast<int>(argument),
                          static_cast<uint64_t>(push.plus));
    Variable(plus);
    Variable(plus + 1);
    // Tokens carry the channel's controller id, which is set before the first of them.
    if (push.token && named_.insert({push.column, push.direction, push.channel}).second) {
      txn_.MaskWrite(ShimChannelControl(push.column, push.direction, push.channel), kControllerId,
                     kControllerIdMask);
    }
    txn_.Write(ShimTaskQueue(push.column, push.direction, push.channel),
               TaskQueueWord(push.descriptor, push.runs, push.token));
  }

  void Encode(const TokenWait& wait) { txn_.Wait(wait.column, 0, wait.direction, wait.channel); }

  TxnWriter txn_;
  std::set<std::tuple<int, Direction, int>> named_;  // channels whose controller id is set
  Run run_{};
};

}  // namespace

Stream BuildStream(const Manifest& manifest, const Plan& plan) {
  Require(!plan.empty(), "a plan has at least one invocation, got none");
  const std::vector<Segment> segments = Interpret(manifest, plan);
  const std::vector<int> shared = SharedBuffers(plan);
  Stream stream;
  size_t first = 0;
  while (first < segments.size()) {
    RunEncoder run(manifest, shared);
    double seconds = kDispatchSeconds;
    size_t end = first;
    for (; end < segments.size() && seconds + segments[end].seconds <= kMaxRunSeconds &&
           run.Take(segments[end]);
         ++end) {
      seconds += segments[end].seconds;
      for (const Operation& operation : segments[end].operations) run.Encode(operation);
    }
    if (end == first) {
      const OpSource source = segments[end].operations.front().source;
      const std::string what = Describe(plan[static_cast<size_t>(source.invocation)]);
      Require(seconds + segments[end].seconds <= kMaxRunSeconds, what,
              ": a stretch without a cut is predicted to take ", segments[end].seconds,
              " s, expected at most ", kMaxRunSeconds,
              " s; give the sequence a cut within it, or split the shape");
      Fail(ErrorCode::kInvalidArgument, what, ": a stretch without a cut touches more than ",
           kRunBuffers, " buffers, which is what a run can have");
    }
    stream.runs.push_back(std::move(run).Finish(seconds));
    first = end;
  }
  return stream;
}

}  // namespace ort_aie::npu
