// Recipes: read, written again, shapes inferred, made into a program, which is called with shapes
// that change from call to call. A program's results equal those of its steps one by one, each in
// separate memory.
//
// An input is a recipe. After a line "--" come its inputs, "input TENSOR" (ReadTensor), or
// "constant TENSOR" for one that is known when the program is made; then perhaps "again N TENSOR",
// the value of input N in a second call. The recipe's own constants hold a pattern.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <memory_resource>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ops/program.h"
#include "runtime.h"
#include "targets/target.h"

// Refuses large allocations, like a machine without the memory for them.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:max_allocation_size_mb=256";
}

namespace {

using namespace ort_aie;

constexpr std::string_view kEndOfRecipe = "\n--\n";
constexpr int64_t kMostConstants = 1 << 20, kMostOutput = 1 << 24;  // bytes

// Memory of exactly the given size, so that the sanitizer sees each access beyond it.
using Bytes = std::unique_ptr<uint8_t[]>;

// Bytes that no step writes are the same in every allocation.
Bytes Zeros(int64_t bytes) { return std::make_unique<uint8_t[]>(static_cast<size_t>(bytes)); }

class OneThread final : public ThreadPool {
 protected:
  void Run(int64_t count, Call call, void* job) const override {
    for (int64_t i = 0; i < count; ++i) call(job, i);
  }
};

struct Given {
  std::shared_ptr<OrtValue> value;
  bool is_constant;

  Tensor tensor() const {
    Tensor tensor{TypeOfNumber(value->info.type),
                  Shape(value->info.shape.begin(), value->info.shape.end()), value->bytes.get(),
                  true, 0};
    tensor.bytes = ByteCount(tensor.type, tensor.shape).As("an input");
    return tensor;
  }
};

// All that one call reads and writes.
struct Call final : Program::Io {
  explicit Call(const std::vector<Given>& all) : given(all) {}
  Tensor Input(int input) const override {
    const auto i = static_cast<size_t>(input);
    return i < given.size() ? given[i].tensor() : Tensor{};
  }
  void* Output(int output, DataType type, const Shape& shape) const override {
    const int64_t bytes = ByteCount(type, shape).As("an output");
    Require(bytes <= kMostOutput, "an output is too large");
    const auto i = static_cast<size_t>(output);
    if (outputs.size() <= i) outputs.resize(i + 1);
    outputs[i] = {Zeros(bytes), bytes};
    return outputs[i].first.get();
  }

  std::vector<Given> given;
  mutable std::vector<std::pair<Bytes, int64_t>> outputs;
};

void Check(bool holds, const char* what) {
  if (holds) return;
  std::cerr << what << '\n';
  std::abort();
}

bool Same(const Call& a, const Call& b) {
  if (a.outputs.size() != b.outputs.size()) return false;
  for (size_t i = 0; i < a.outputs.size(); ++i) {
    const auto& [one, bytes] = a.outputs[i];
    const auto& [other, as_many] = b.outputs[i];
    if (bytes != as_many) return false;
    if (bytes != 0 && std::memcmp(one.get(), other.get(), static_cast<size_t>(bytes)) != 0) {
      return false;
    }
  }
  return true;
}

// The steps one by one.
void CallSteps(const Recipe& recipe, const Program::Constants& constants, const Call& call) {
  const Options options;
  std::vector<Tensor> values(static_cast<size_t>(recipe.values()));
  std::vector<Bytes> memory;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = constants(static_cast<int>(i));
    if (!values[i] && recipe.IsInput(static_cast<int>(i))) {
      values[i] = call.Input(static_cast<int>(i));
    }
  }
  for (const Recipe::Step& step : recipe.steps) {
    std::vector<Tensor> known, inputs(kMostInputs);
    for (size_t i = 0; i < step.reads.size(); ++i) {
      if (step.reads[i] == Recipe::kAbsent) {
        known.emplace_back();
        continue;
      }
      known.push_back(constants(step.reads[i]));
      inputs[i] = values[static_cast<size_t>(step.reads[i])];
    }
    const auto op = FindOp(step.op)->create(StepInfo(step, known), options);
    std::vector<Op::Output> outputs(kMostOutputs);
    op->Describe(inputs, outputs);
    std::vector<void*> buffers(kMostOutputs);
    for (size_t i = 0; i < step.writes.size(); ++i) {
      if (step.writes[i] == Recipe::kAbsent) continue;
      const auto& [type, shape, same_as] = outputs[i];
      memory.push_back(Zeros(ByteCount(type, shape).As("a result")));
      buffers[i] = memory.back().get();
      values[static_cast<size_t>(step.writes[i])] = {type, shape, buffers[i], true, 0};
    }
    std::pmr::monotonic_buffer_resource call_memory;
    Plan plan(&call_memory);
    op->Append(inputs, outputs, buffers, plan);
    HostTarget().Execute(plan, OneThread());
  }
  for (size_t i = 0; i < recipe.outputs.size(); ++i) {
    if (recipe.outputs[i] == Recipe::kAbsent) continue;
    const Tensor& value = values[static_cast<size_t>(recipe.outputs[i])];
    void* to = call.Output(static_cast<int>(i), value.type, value.shape);
    const auto bytes = static_cast<size_t>(ByteCount(value.type, value.shape).As("a result"));
    if (bytes != 0) std::memcpy(to, value.data, bytes);
  }
}

std::optional<ShapeContext::Value> Declared(const Tensor& tensor) {
  if (!tensor) return std::nullopt;
  ShapeContext::Value value{NumberOf(tensor.type)};
  for (const int64_t dim : tensor.shape) value.dims.push_back({dim});
  return value;
}

// Whether a call may leave rows of a cache unwritten, which later code may read.
bool MayLeaveRows(const Recipe& recipe) {
  for (const Recipe::Step& step : recipe.steps) {
    if (step.op == "FlowAttention") return true;
  }
  return false;
}

void Try(const Recipe& recipe, const std::vector<Given>& first, const std::vector<Given>& second) {
  const std::string text = ToText(recipe);
  Check(ToText(RecipeFrom(text)) == text, "a recipe is not what was written of it");
  int64_t bytes = 0;
  for (const Recipe::Constant& constant : recipe.constants) bytes += constant.range.size;
  Require(bytes <= kMostConstants, "too many constants");
  std::vector<Bytes> memory;
  for (const Recipe::Constant& constant : recipe.constants) {
    memory.push_back(Zeros(constant.range.size));
    for (int64_t i = 0; i < constant.range.size; ++i) {
      memory.back()[static_cast<size_t>(i)] = static_cast<uint8_t>(i * 37 % 251);
    }
  }
  const auto constants = [&](int value) -> Tensor {
    const auto i = static_cast<size_t>(value);
    if (recipe.IsInput(value)) {
      return i < first.size() && first[i].is_constant ? first[i].tensor() : Tensor{};
    }
    const int place = recipe.ConstantOf(value);
    if (place == Recipe::kAbsent) return {};
    const auto& constant = recipe.constants[static_cast<size_t>(place)];
    return {constant.type, constant.shape, memory[static_cast<size_t>(place)].get(), true,
            constant.range.size};
  };
  try {  // with known inputs, and with none
    std::vector<std::optional<ShapeContext::Value>> declared;
    for (const Given& given : first) declared.push_back(Declared(given.tensor()));
    InferValues(recipe, declared);
    InferValues(recipe, {});
  } catch (const Error&) {
  }
  const Program program(recipe, constants, {});
  const auto run = [&](const Call& call) {
    program.Call(call, [](Plan& plan) { HostTarget().Execute(plan, OneThread()); });
  };
  const Call call(first), other(second), again(first), steps(first);
  run(call);
  try {
    run(other);
  } catch (const Error&) {
  }
  run(again);
  if (MayLeaveRows(recipe)) return;
  Check(Same(call, again), "a program does not do twice what it did once");
  CallSteps(recipe, constants, steps);
  Check(Same(call, steps), "a program does not do what its steps do");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.find(kEndOfRecipe);
  std::vector<Given> first, second;
  if (end != std::string::npos) {
    std::istringstream lines(text.substr(end + kEndOfRecipe.size()));
    for (std::string line; std::getline(lines, line) && first.size() < 64;) {
      std::istringstream words(line);
      std::string key;
      size_t place = first.size();
      words >> key;
      if (key == "again" && !(words >> place)) return -1;
      if (key != "input" && key != "constant" && key != "again") continue;
      const Given given{fuzz::ReadTensor(words), key == "constant"};
      if (given.value == nullptr) return -1;
      if (key != "again") {
        first.push_back(given);
        second.push_back(given);
      } else if (place < second.size() && !second[place].is_constant) {
        second[place] = given;
      }
    }
  }
  try {
    Try(RecipeFrom(end == std::string::npos ? text : text.substr(0, end + 1)), first, second);
  } catch (const Error&) {
  } catch (const std::bad_alloc&) {
  }
  return 0;
}
