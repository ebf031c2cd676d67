#include "ops/program.h"

#include <algorithm>
#include <array>
#include <memory_resource>
#include <string_view>
#include <utility>

#include "base/aligned.h"
#include "base/error.h"
#include "base/places.h"

namespace ort_aie {
namespace {

constexpr int64_t kAlignment = 256;  // bytes; vector units and devices prefer such addresses
// A prompt's arena is freed when the tokens after it need this much less of it, and malloc gives it
// back to the system: that is, from glibc's largest threshold on. A smaller one, made and freed in
// turns, would leave holes in the heap.
constexpr size_t kShrink = 16, kWorthShrinking = size_t{32} << 20;

constexpr size_t Index(int value) { return static_cast<size_t>(value); }

}  // namespace

// The state of one call, kept for later calls. Calls at the same time each have their own.
struct Program::Frame {
  std::vector<Tensor> tensors;     // by value
  std::vector<int64_t> bytes;      // of temporaries, by value: the sizes of the places below
  std::vector<int64_t> places;     // in the arena
  std::vector<int64_t> new_bytes;  // those of this call
  std::vector<int> same_as;        // by value: the value whose memory it shares, or kAbsent
  std::vector<std::array<Op::Output, kMostOutputs>> outputs;  // by step
  AlignedMemory arena;
  size_t arena_bytes = 0, arena_capacity = 0;
  std::vector<std::byte> plan;  // memory of steps
};

Program::Program(Recipe recipe, const Constants& constants, const Options& options)
    : recipe_(std::move(recipe)),
      constants_(Index(recipe_.values())),
      output_of_(constants_.size(), Recipe::kAbsent) {
  for (size_t i = 0; i < constants_.size(); ++i) constants_[i] = constants(static_cast<int>(i));
  for (size_t i = 0; i < recipe_.outputs.size(); ++i) {
    if (recipe_.outputs[i] == Recipe::kAbsent) continue;
    output_of_[Index(recipe_.outputs[i])] = static_cast<int>(i);
  }
  std::vector<size_t> last(constants_.size(), 0);  // the last step that uses a value
  for (size_t i = 0; i < recipe_.steps.size(); ++i) {
    const Recipe::Step& step = recipe_.steps[i];
    const OpDescription* op = FindOp(step.op);
    std::vector<Tensor> known;
    for (const int value : step.reads) {
      known.push_back(value == Recipe::kAbsent ? Tensor{} : constants_[Index(value)]);
      if (value != Recipe::kAbsent) last[Index(value)] = i;
    }
    for (const int value : step.writes) {
      if (value != Recipe::kAbsent) last[Index(value)] = i;
    }
    try {
      steps_.push_back({MakeOp(*op, StepInfo(step, known), options), op, {}});
    } catch (const Error& error) {
      FailAt(i, error);
    }
  }
  // An input that may be passed on must live as long as the output that shares its memory.
  for (size_t i = steps_.size(); i-- > 0;) {
    if (!steps_[i].description->passes_on) continue;
    const Recipe::Step& step = recipe_.steps[i];
    size_t& of_input = last[Index(step.reads[0])];
    of_input = std::max(of_input, last[Index(step.writes[0])]);
  }
  for (const Recipe::Step& step : recipe_.steps) {
    for (const int value : step.writes) {
      if (value == Recipe::kAbsent || output_of_[Index(value)] != Recipe::kAbsent) continue;
      steps_[last[Index(value)]].dead.push_back(value);
    }
  }
}

Program::~Program() = default;

void Program::FailAt(size_t step, const Error& error) const {
  const Recipe::Step& failed = recipe_.steps[step];
  throw Error(error.code(), Concat("aie.", failed.op, " '", failed.name, "': ", error.what()));
}

std::unique_ptr<Program::Frame> Program::TakeFrame() const {
  {
    const std::lock_guard lock(mutex_);
    if (!frames_.empty()) {
      auto frame = std::move(frames_.back());
      frames_.pop_back();
      return frame;
    }
  }
  auto frame = std::make_unique<Frame>();
  frame->tensors.resize(constants_.size());
  frame->bytes.assign(constants_.size(), -1);
  frame->new_bytes.assign(constants_.size(), 0);
  frame->places.assign(constants_.size(), 0);
  frame->same_as.assign(constants_.size(), Recipe::kAbsent);
  frame->outputs.resize(steps_.size());
  frame->plan.resize(steps_.size() * (sizeof(ort_aie::Step) + sizeof(std::string_view) + 128) +
                     4096);
  return frame;
}

void Program::Gather(const Frame& frame, size_t step, std::span<Tensor> inputs) const {
  const std::vector<int>& reads = recipe_.steps[step].reads;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool there = i < reads.size() && reads[i] != Recipe::kAbsent;
    if (there) {
      inputs[i] = frame.tensors[Index(reads[i])];
    } else if (inputs[i].present) {
      inputs[i] = {};
    }
  }
}

void Program::Describe(Frame& frame) const {
  std::array<Tensor, kMostInputs> inputs;
  for (size_t i = 0; i < steps_.size(); ++i) {
    Gather(frame, i, std::span(inputs).first(steps_[i].description->inputs));
    auto& outputs = frame.outputs[i];
    for (Op::Output& output : outputs) {
      output.type = DataType::kOther;
      output.same_as = Op::Output::kOwn;
    }
    try {
      steps_[i].op->Describe(inputs, outputs);
      const std::vector<int>& writes = recipe_.steps[i].writes;
      for (size_t o = 0; o < writes.size(); ++o) {
        if (writes[o] == Recipe::kAbsent) continue;
        Require(outputs[o].type != DataType::kOther, "it has no output ", o);
        const auto bytes = ByteCount(outputs[o].type, outputs[o].shape).As("a result");
        frame.tensors[Index(writes[o])] = {outputs[o].type, outputs[o].shape, nullptr, true, 0};
        const bool own = outputs[o].same_as == Op::Output::kOwn ||
                         output_of_[Index(writes[o])] != Recipe::kAbsent;
        frame.same_as[Index(writes[o])] =
            own ? Recipe::kAbsent : recipe_.steps[i].reads[static_cast<size_t>(outputs[o].same_as)];
        frame.new_bytes[Index(writes[o])] =
            own ? (bytes + kAlignment - 1) / kAlignment * kAlignment : 0;
      }
    } catch (const Error& error) {
      FailAt(i, error);
    }
  }
}

void Program::PlaceTemporaries(Frame& frame) const {
  if (frame.bytes != frame.new_bytes) {
    Places places;
    for (size_t i = 0; i < steps_.size(); ++i) {
      for (const int value : recipe_.steps[i].writes) {
        if (value == Recipe::kAbsent || output_of_[Index(value)] != Recipe::kAbsent) continue;
        frame.places[Index(value)] = places.Take(frame.new_bytes[Index(value)]);
      }
      for (const int value : steps_[i].dead) {
        places.Give(frame.places[Index(value)], frame.new_bytes[Index(value)]);
      }
    }
    frame.bytes = frame.new_bytes;
    frame.arena_bytes = static_cast<size_t>(places.end());
  }
  const bool much_too_large =
      frame.arena_capacity > kWorthShrinking && frame.arena_capacity / kShrink > frame.arena_bytes;
  if (frame.arena == nullptr || frame.arena_bytes > frame.arena_capacity || much_too_large) {
    frame.arena.reset();
    frame.arena_capacity = 0;
    const size_t bytes = std::max<size_t>(frame.arena_bytes, kAlignment);
    frame.arena = AllocateAligned(bytes, kAlignment);
    frame.arena_capacity = bytes;
  }
}

void Program::Call(const Io& io, const std::function<void(Plan&)>& execute) const {
  std::unique_ptr<Frame> frame = TakeFrame();
  for (int i = 0; i < recipe_.inputs + static_cast<int>(recipe_.constants.size()); ++i) {
    frame->tensors[Index(i)] =
        constants_[Index(i)] || i >= recipe_.inputs ? constants_[Index(i)] : io.Input(i);
  }
  Describe(*frame);
  PlaceTemporaries(*frame);

  {  // the plan is in the frame, so it ends before another call may have that
    std::pmr::monotonic_buffer_resource memory(frame->plan.data(), frame->plan.size());
    Plan plan(&memory);
    plan.steps.reserve(steps_.size());
    plan.names.reserve(steps_.size());
    plan.kept = kept_;
    auto* const arena = static_cast<uint8_t*>(frame->arena.get());
    plan.temporaries = {arena, frame->arena_bytes};
    std::array<Tensor, kMostInputs> inputs;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const std::vector<int>& writes = recipe_.steps[i].writes;
      const auto& outputs = frame->outputs[i];
      std::array<void*, kMostOutputs> buffers{};
      for (size_t o = 0; o < writes.size(); ++o) {
        if (writes[o] == Recipe::kAbsent) continue;
        const int output = output_of_[Index(writes[o])], same = frame->same_as[Index(writes[o])];
        if (output != Recipe::kAbsent) {
          buffers[o] = io.Output(output, outputs[o].type, outputs[o].shape);
        } else if (same != Recipe::kAbsent) {
          buffers[o] = const_cast<void*>(frame->tensors[Index(same)].data);  // never written
        } else {
          buffers[o] = arena + frame->places[Index(writes[o])];
        }
        frame->tensors[Index(writes[o])].data = buffers[o];
      }
      Gather(*frame, i, std::span(inputs).first(steps_[i].description->inputs));
      try {
        steps_[i].op->Append(inputs, outputs, buffers, plan);
      } catch (const Error& error) {
        FailAt(i, error);
      }
      plan.names.resize(plan.steps.size(), recipe_.steps[i].name);
    }
    execute(plan);
  }
  const std::lock_guard lock(mutex_);
  frames_.push_back(std::move(frame));
}

}  // namespace ort_aie
