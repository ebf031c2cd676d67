#include "npu/interpreter.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "base/error.h"
#include "npu/prediction.h"

namespace ort_aie::npu {
namespace {

// For one invocation. No shape of a model comes near this (a prompt of 131,072 tokens takes 8.6
// million); a manifest that does has a loop that does not end. Steps count statements, and the
// expressions that they evaluate and the items that they list.
constexpr size_t kMaxSteps = size_t{1} << 26;
constexpr size_t kTransferSteps = 16;  // to plan its tasks
constexpr size_t kOuterSteps = 4;      // for each outer dimension
constexpr size_t kWaitSteps = 64;      // for each fifo, to look at the tasks under way
constexpr size_t kCutSteps = 64;       // to predict its time
// The largest number of buffers in a plan: SharedBuffers counts them.
constexpr int kMaxBuffers = 1 << 16;
// The most operations in the interpretations that are kept, at about 100 bytes each. A token of 36
// layers has 4,000 in 20 interpretations.
constexpr size_t kKeptOperations = size_t{1} << 17;

template <typename List, typename Projection>
std::string Names(const List& list, Projection projection) {
  std::string names;
  for (const auto& entry : list) {
    names += (names.empty() ? "" : ", ") + std::string(std::invoke(projection, entry));
  }
  return names.empty() ? "none" : names;
}

const Sequence& SequenceOf(const Manifest& manifest, const Invocation& invocation) {
  const auto found = std::ranges::find(manifest.sequences, invocation.sequence, &Sequence::name);
  Require(found != manifest.sequences.end(), "is not in the manifest of ", manifest.name,
          ", which has ", Names(manifest.sequences, &Sequence::name));
  return *found;
}

// Interprets one invocation.
class OfInvocation {
 public:
  OfInvocation(const Manifest& manifest, const Invocation& invocation)
      : manifest_(manifest),
        sequence_(SequenceOf(manifest, invocation)),
        tasks_(manifest),
        predictor_(manifest) {
    frame_.assign(sequence_.symbols.size(), 0);
    BindParameters(invocation);
    for (const Argument& argument : sequence_.arguments) bytes_.push_back(Value(argument.bytes));
  }

  Interpretation Run() {
    RunBody(sequence_.body);
    Divide("ends");
    made_.steps = steps_;
    return std::move(made_);
  }

  std::string UnmetRequirement() {
    for (const Statement& statement : sequence_.body) {
      if (const auto* let = std::get_if<LetStatement>(&statement.what)) {
        Do(*let);
      } else if (const auto* require = std::get_if<RequireStatement>(&statement.what)) {
        if (Value(require->condition) == 0) return Message(*require);
      } else {
        break;
      }
    }
    return "";
  }

  // The current statement and loop indices, for a message.
  std::string Where() const {
    if (path_ < 0) return "";
    std::string text = ", " + sequence_.paths[static_cast<size_t>(path_)];
    for (size_t i = 0; i < loops_.size(); ++i) {
      const auto slot = static_cast<size_t>(loops_[i]);
      text += Concat(i == 0 ? " at " : ", ", sequence_.symbols[slot], "=", frame_[slot]);
    }
    return text;
  }

 private:
  void BindParameters(const Invocation& invocation) {
    const auto& expected = sequence_.parameters;
    for (size_t slot = 0; slot < expected.size(); ++slot) {
      const auto value = invocation.parameters.find(expected[slot]);
      Require(value != invocation.parameters.end(), "has no value for the parameter \"",
              expected[slot], "\", expected ", Names(expected, std::identity()));
      frame_[slot] = value->second;
    }
    for (const auto& [name, value] : invocation.parameters) {
      Require(std::ranges::find(expected, name) != expected.end(), "has no parameter \"", name,
              "\", expected ", Names(expected, std::identity()));
    }
  }

  // --- statements --------------------------------------------------------------------------------

  void RunBody(const Body& body) {
    for (const Statement& statement : body) {
      path_ = statement.path;
      Spend(1);
      tasks_.From({0, path_});
      std::visit([&](const auto& what) { Do(what); }, statement.what);
    }
  }

  void Spend(size_t steps) {
    steps_ += steps;
    Require(steps_ <= kMaxSteps, "takes more than ", kMaxSteps, " steps");
  }

  int64_t Value(const Expression& expression) {
    Spend(expression.size());
    return expression.Evaluate(frame_);
  }

  void Do(const LetStatement& let) { frame_[static_cast<size_t>(let.slot)] = Value(let.value); }

  void Do(const RequireStatement& require) {
    if (Value(require.condition) != 0) return;
    Fail(ErrorCode::kInvalidArgument, Message(require));
  }

  std::string Message(const RequireStatement& require) const {
    std::string message;
    for (const auto& part : require.message) {
      const int* slot = std::get_if<int>(&part);
      message += slot == nullptr ? std::get<std::string>(part)
                                 : std::to_string(frame_[static_cast<size_t>(*slot)]);
    }
    return message;
  }

  void Do(const ForStatement& loop) {
    const int64_t count = Value(loop.count);
    loops_.push_back(loop.slot);
    for (int64_t i = 0; i < count; ++i) {
      Spend(1);  // an empty body counts as well
      frame_[static_cast<size_t>(loop.slot)] = i;
      RunBody(loop.body);
    }
    loops_.pop_back();
  }

  void Do(const IfStatement& branch) {
    if (Value(branch.condition) != 0) RunBody(branch.body);
  }

  void Do(const TransferStatement& transfer) {
    const int64_t bytes = bytes_[static_cast<size_t>(transfer.argument)];
    const Fifo& fifo = manifest_.fifos[static_cast<size_t>(transfer.fifo)];
    Spend(kTransferSteps + kOuterSteps * transfer.outer.size());
    Tap tap{Value(transfer.offset), Value(transfer.run), {}};
    for (const auto& [count, stride] : transfer.outer) {
      tap.outer.push_back({Value(count), Value(stride)});
    }
    std::vector<Task> tasks;
    try {
      tasks = PlanTasks(tap, bytes, static_cast<int64_t>(kMaxOperations - operations()));
    } catch (const Error& error) {
      Fail(error.code(), "fifo \"", fifo.name, "\", argument \"",
           sequence_.arguments[static_cast<size_t>(transfer.argument)].name, "\": ", error.what());
    }
    for (const Task& task : tasks) {
      tasks_.Transfer(transfer.fifo, task, transfer.argument);
      CheckOperations();
    }
  }

  void Do(const StartStatement& start) {
    Spend(start.values.size());
    std::vector<int64_t> values;
    for (const Expression& value : start.values) values.push_back(Value(value));
    tasks_.Start(manifest_.workers[static_cast<size_t>(start.worker)], values);
    CheckOperations();
  }

  void Do(const WaitStatement& wait) {
    Spend(kWaitSteps * wait.fifos.size());
    if (wait.everything) {
      tasks_.Wait(wait.fifos);
      predictor_.Complete(tasks_.operations());
    } else {
      tasks_.Arrive(wait.fifos);
    }
    CheckOperations();
  }

  void Do(const WorkStatement& work) {
    const int64_t cycles = Value(work.cycles);
    Require(cycles >= 0, "work of ", cycles, " cycles, expected a number that is not negative");
    predictor_.Work(static_cast<double>(cycles));
  }

  void Do(const CutStatement&) {
    Spend(kCutSteps);
    Divide("is cut");
  }

  // --- segments ----------------------------------------------------------------------------------

  // Made so far.
  size_t operations() const { return made_.operations + tasks_.operations(); }

  void CheckOperations() const {
    Require(operations() <= kMaxOperations, "needs more than ", kMaxOperations, " operations");
  }

  void Divide(const char* what) {
    Require(tasks_.outstanding() == 0, what, " while ", tasks_.outstanding(),
            " transfers are under way, expected a wait before");
    std::vector<Operation> operations = tasks_.Take();
    made_.operations += operations.size();
    const double seconds = predictor_.Seconds(operations);
    if (!operations.empty()) made_.segments.push_back({std::move(operations), seconds});
  }

  const Manifest& manifest_;
  const Sequence& sequence_;
  ShimTasks tasks_;
  Predictor predictor_;
  Interpretation made_;
  std::vector<int64_t> frame_;
  std::vector<int64_t> bytes_;  // of the arguments
  std::vector<int> loops_;      // slots of the open loops
  int path_ = -1;
  size_t steps_ = 0;
};

}  // namespace

std::string UnmetRequirement(const Manifest& manifest, const Invocation& invocation) {
  return OfInvocation(manifest, invocation).UnmetRequirement();
}

int64_t ArgumentBytes(const Manifest& manifest, const Invocation& invocation,
                      std::string_view argument) {
  const auto sequence = std::ranges::find(manifest.sequences, invocation.sequence, &Sequence::name);
  Require(sequence != manifest.sequences.end(), "the manifest of ", manifest.name,
          " has no sequence \"", invocation.sequence, "\"");
  std::vector<int64_t> frame(sequence->symbols.size());
  for (size_t slot = 0; slot < sequence->parameters.size(); ++slot) {
    const auto value = invocation.parameters.find(sequence->parameters[slot]);
    if (value == invocation.parameters.end()) {  // described only then, which takes a while
      Fail(ErrorCode::kInvalidArgument, Describe(invocation), " has no value for the parameter \"",
           sequence->parameters[slot], "\"");
    }
    frame[slot] = value->second;
  }
  const auto found = std::ranges::find(sequence->arguments, argument, &Argument::name);
  if (found == sequence->arguments.end()) {
    Fail(ErrorCode::kInvalidArgument, Describe(invocation), " has no argument \"",
         std::string(argument), "\"");
  }
  return found->bytes.Evaluate(frame);
}

std::string Describe(const Invocation& invocation) {
  std::string text = "sequence \"" + invocation.sequence + "\" (";
  for (const auto& [name, value] : invocation.parameters) {
    text += Concat(text.back() == '(' ? "" : ", ", name, "=", value);
  }
  return text + ")";
}

std::shared_ptr<const Interpretation> Interpreter::Get(const Invocation& invocation) {
  const Key key(invocation.sequence, invocation.parameters);
  const auto known = made_.find(key);
  if (known != made_.end()) return known->second;
  std::optional<OfInvocation> now;
  try {
    now.emplace(manifest_, invocation);
    const auto made = std::make_shared<const Interpretation>(now->Run());
    if (operations_ + made->operations > kKeptOperations) {
      made_.clear();
      operations_ = 0;
    }
    if (made->operations <= kKeptOperations) {
      made_.emplace(key, made);
      operations_ += made->operations;
    }
    return made;
  } catch (const Error& error) {
    Fail(error.code(), Describe(invocation), now ? now->Where() : "", ": ", error.what());
  }
}

std::vector<BufferView> Interpreter::Views(const Invocation& invocation) const {
  std::vector<BufferView> views;
  try {
    const auto& expected = SequenceOf(manifest_, invocation).arguments;
    for (const Argument& argument : expected) {
      const auto found = invocation.arguments.find(argument.name);
      Require(found != invocation.arguments.end(), "has no buffer for the argument \"",
              argument.name, "\", expected ", Names(expected, &Argument::name));
      const BufferView view = found->second;
      Require(view.argument >= 0 && view.argument < kMaxBuffers, "argument \"", argument.name,
              "\" is in buffer ", view.argument, " of the plan, expected 0 to ", kMaxBuffers - 1);
      Require(view.offset >= 0 && view.offset % 4 == 0, "argument \"", argument.name,
              "\" starts at byte ", view.offset,
              " of its buffer, expected a multiple of 4 that is not negative");
      views.push_back(view);
    }
    for (const auto& [name, view] : invocation.arguments) {
      Require(std::ranges::find(expected, name, &Argument::name) != expected.end(),
              "has no argument \"", name, "\", expected ", Names(expected, &Argument::name));
    }
  } catch (const Error& error) {
    Fail(error.code(), Describe(invocation), ": ", error.what());
  }
  return views;
}

}  // namespace ort_aie::npu
