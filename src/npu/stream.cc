#include "npu/stream.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "npu/expression.h"
#include "npu/txn.h"

namespace ort_aie::npu {
namespace {

// The buffers that every run of a plan gets: all of them, if they fit one run.
std::vector<int> SharedBuffers(const Invocations& plan) {
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

// Adds the buffers that a segment touches; false if a run cannot have so many.
bool TakeBuffers(const Segment& segment, std::span<const BufferView> views,
                 std::vector<int>& buffers) {
  std::vector<int> all = buffers;
  for (const Operation& operation : segment.operations) {
    const Push* push = std::get_if<Push>(&operation.what);
    if (push == nullptr) continue;
    const int buffer = views[static_cast<size_t>(push->argument)].argument;
    if (std::ranges::find(all, buffer) != all.end()) continue;
    if (all.size() == kRunBuffers) return false;
    all.push_back(buffer);
  }
  buffers = std::move(all);
  return true;
}

TxnDevice DeviceOf(const Manifest& manifest) {
  return {manifest.generation, manifest.rows, manifest.columns};
}

// Encodes the operations of a segment as words.
class PieceEncoder {
 public:
  // `named`: the channels whose controller id the run has already set.
  PieceEncoder(const Manifest& manifest, std::span<const BufferView> views,
               const std::vector<int>& buffers, uint64_t named)
      : views_(views), buffers_(buffers), named_(named), txn_(DeviceOf(manifest)) {}

  void Encode(const Segment& segment, int invocation) {
    for (const Operation& operation : segment.operations) {
      std::visit([&](const auto& what) { Encode(what); }, operation.what);
      sources.resize(txn_.operations(), {invocation, operation.source.path});
    }
    words = std::move(txn_).Finish();
    words.erase(words.begin(), words.begin() + kTxnHeaderWords);
  }

  // Only those of the segment.
  std::vector<uint32_t> words, variable;
  std::vector<OpSource> sources;
  uint64_t named() const { return named_; }

 private:
  void Variable(size_t word) { variable.push_back(static_cast<uint32_t>(word - kTxnHeaderWords)); }

  void Encode(const ParameterWrite& write) {
    Variable(txn_.Write(write.address, static_cast<uint32_t>(write.value)));
  }

  void Encode(const LockWrite& write) { txn_.Write(write.address, write.value); }

  void Encode(const Push& push) {
    const uint32_t descriptor = ShimDescriptor(push.column, push.descriptor);
    Variable(txn_.BlockWrite(descriptor, push.words));  // word 0 is the length
    const BufferView view = views_[static_cast<size_t>(push.argument)];
    const int64_t end = CheckedAdd(view.offset, push.end);
    Require(end <= kBufferReach, "a transfer of shim column ", push.column, " reaches byte ", end,
            " of buffer ", view.argument, ", expected at most ", kBufferReach,
            ": descriptors reach 4 GiB of a buffer; divide it");
    const auto argument = std::ranges::find(buffers_, view.argument) - buffers_.begin();
    const size_t plus =
        txn_.AddressPatch(descriptor + kAddressWordBytes, static_cast<int>(argument),
                          static_cast<uint64_t>(CheckedAdd(view.offset, push.plus)));
    Variable(plus);
    Variable(plus + 1);
    // Tokens carry the channel's controller id, so it is set before the first of them.
    const uint64_t channel = uint64_t{1}
                             << ShimChannelIndex(push.column, push.direction, push.channel);
    if (push.token && (named_ & channel) == 0) {
      named_ |= channel;
      txn_.MaskWrite(ShimChannelControl(push.column, push.direction, push.channel), kControllerId,
                     kControllerIdMask);
    }
    txn_.Write(ShimTaskQueue(push.column, push.direction, push.channel),
               TaskQueueWord(push.descriptor, push.runs, push.token));
  }

  void Encode(const TokenWait& wait) { txn_.Wait(wait.column, 0, wait.direction, wait.channel); }

  static_assert(kMaxColumns * 2 * kShimChannels <= 64);
  const std::span<const BufferView> views_;
  const std::vector<int>& buffers_;
  uint64_t named_;
  TxnWriter txn_;
};

// Joins segments into runs.
class StreamBuilder {
 public:
  StreamBuilder(const Manifest& manifest, const Invocations& plan)
      : manifest_(manifest), plan_(plan), shared_(SharedBuffers(plan)) {}

  void Add(const Segment& segment, std::span<const BufferView> views, int invocation) {
    if (stream_.runs.empty() || (!empty() && !TryAdd(segment, views, invocation))) Begin();
    if (!empty() || TryAdd(segment, views, invocation)) return;
    const std::string what = Describe(plan_[static_cast<size_t>(invocation)]);
    Require(kDispatchSeconds + segment.seconds <= kMaxRunSeconds, what,
            ": a stretch without a cut is predicted to take ", segment.seconds,
            " s, expected at most ", kMaxRunSeconds,
            " s; give the sequence a cut within it, or split the shape");
    Fail(ErrorCode::kInvalidArgument, what, ": a stretch without a cut touches more than ",
         kRunBuffers, " buffers, the most that a run can have");
  }

  InstructionStream Finish() && {
    for (Run& run : stream_.runs) {
      SetTxnHeader(run.words, static_cast<uint32_t>(run.sources.size()));
    }
    return std::move(stream_);
  }

 private:
  // Whether the last run is empty.
  bool empty() const { return stream_.runs.back().sources.empty(); }

  // Adds the segment to the last run, if the run has time, room and buffers for it.
  bool TryAdd(const Segment& segment, std::span<const BufferView> views, int invocation) {
    Run& run = stream_.runs.back();
    std::vector<int> buffers = run.buffers;
    if (run.predicted_seconds + segment.seconds > kMaxRunSeconds ||
        !TakeBuffers(segment, views, buffers)) {
      return false;
    }
    PieceEncoder encoder(manifest_, views, buffers, named_);
    encoder.Encode(segment, invocation);
    const size_t begin = run.words.size(), end = begin + encoder.words.size();
    if (end > kMaxRunWords && !empty()) return false;
    stream_.pieces.push_back({invocation, stream_.runs.size() - 1, begin, end, run.variable.size(),
                              run.sources.size(), named_, segment.seconds});
    named_ = encoder.named();
    run.buffers = std::move(buffers);
    run.words.insert(run.words.end(), encoder.words.begin(), encoder.words.end());
    for (const uint32_t word : encoder.variable) {
      run.variable.push_back(static_cast<uint32_t>(begin) + word);
    }
    run.sources.insert(run.sources.end(), encoder.sources.begin(), encoder.sources.end());
    run.predicted_seconds += segment.seconds;
    return true;
  }

  void Begin() {
    stream_.runs.push_back(
        {TxnWriter(DeviceOf(manifest_)).Finish(), {}, kDispatchSeconds, {}, shared_});
    named_ = 0;
  }

  const Manifest& manifest_;
  const Invocations& plan_;
  const std::vector<int> shared_;
  InstructionStream stream_;
  uint64_t named_ = 0;  // in the last run
};

// Whether a piece of a run would become this one by changing only variable words.
bool SameSkeleton(const Run& run, const Piece& piece, const PieceEncoder& now) {
  if (piece.end - piece.begin != now.words.size() ||
      run.variable.size() - piece.variable < now.variable.size()) {
    return false;
  }
  const uint32_t* const old = run.words.data() + piece.begin;
  size_t begin = 0;
  for (size_t i = 0; i < now.variable.size(); ++i) {
    const size_t word = now.variable[i];
    if (run.variable[piece.variable + i] != piece.begin + word ||
        !std::equal(old + begin, old + word, now.words.begin() + static_cast<ptrdiff_t>(begin))) {
      return false;
    }
    begin = word + 1;
  }
  // The variable words of the next piece begin after these.
  const size_t next = piece.variable + now.variable.size();
  return (next == run.variable.size() || run.variable[next] >= piece.end) &&
         std::equal(old + begin, old + now.words.size(),
                    now.words.begin() + static_cast<ptrdiff_t>(begin));
}

}  // namespace

InstructionStream BuildStream(Interpreter& interpreter, const Invocations& plan) {
  Require(!plan.empty(), "a plan must have at least one invocation, got none");
  StreamBuilder builder(interpreter.manifest(), plan);
  size_t operations = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    const std::vector<BufferView> views = interpreter.Views(plan[i]);
    const std::shared_ptr<const Interpretation> made = interpreter.Get(plan[i]);
    operations += made->operations;
    Require(operations <= kMaxOperations, Describe(plan[i]), ": the plan needs more than ",
            kMaxOperations, " operations");
    for (const Segment& segment : made->segments) {
      builder.Add(segment, views, static_cast<int>(i));
    }
  }
  return std::move(builder).Finish();
}

std::optional<std::vector<WordRange>> PatchStream(Interpreter& interpreter,
                                                  InstructionStream& stream,
                                                  const Invocations& plan,
                                                  const std::vector<size_t>& changed) {
  struct Patched {
    size_t piece;
    std::vector<uint32_t> words;
    std::vector<OpSource> sources;
    double seconds;
  };
  std::vector<Patched> all;
  size_t piece = 0;
  for (const size_t i : changed) {
    const std::vector<BufferView> views = interpreter.Views(plan[i]);
    const std::shared_ptr<const Interpretation> made = interpreter.Get(plan[i]);
    const auto invocation = static_cast<int>(i);
    while (piece < stream.pieces.size() && stream.pieces[piece].invocation < invocation) ++piece;
    for (const Segment& segment : made->segments) {
      if (piece == stream.pieces.size() || stream.pieces[piece].invocation != invocation) {
        return std::nullopt;
      }
      const Piece& old = stream.pieces[piece];
      const Run& run = stream.runs[old.run];
      PieceEncoder now(interpreter.manifest(), views, run.buffers, old.named_before);
      now.Encode(segment, invocation);
      if (!SameSkeleton(run, old, now)) return std::nullopt;
      all.push_back({piece++, std::move(now.words), std::move(now.sources), segment.seconds});
    }
    if (piece < stream.pieces.size() && stream.pieces[piece].invocation == invocation) {
      return std::nullopt;
    }
  }
  std::vector<double> seconds(stream.runs.size(), kDispatchSeconds);
  auto next = all.begin();
  for (size_t i = 0; i < stream.pieces.size(); ++i) {
    const bool is_new = next != all.end() && next->piece == i;
    seconds[stream.pieces[i].run] += is_new ? (next++)->seconds : stream.pieces[i].seconds;
  }
  if (std::ranges::any_of(seconds, [](double of_run) { return of_run > kMaxRunSeconds; })) {
    return std::nullopt;
  }

  std::vector<WordRange> ranges;
  for (const Patched& patched : all) {
    Piece& to = stream.pieces[patched.piece];
    Run& run = stream.runs[to.run];
    to.seconds = patched.seconds;
    std::ranges::copy(patched.sources, run.sources.begin() + static_cast<ptrdiff_t>(to.sources));
    for (size_t i = 0; i < patched.words.size(); ++i) {
      const size_t word = to.begin + i;
      if (run.words[word] == patched.words[i]) continue;
      run.words[word] = patched.words[i];
      if (!ranges.empty() && ranges.back().run == to.run && ranges.back().end == word) {
        ++ranges.back().end;
      } else {
        ranges.push_back({to.run, word, word + 1});
      }
    }
  }
  for (size_t run = 0; run < seconds.size(); ++run) {
    stream.runs[run].predicted_seconds = seconds[run];
  }
  return ranges;
}

}  // namespace ort_aie::npu
