// What an NPU would do with a plan: the scheduler of src/targets/npu, for tensors without data.
#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "npu/manifest.h"
#include "npu/stream.h"
#include "ops/program.h"
#include "python/npu_module.h"
#include "targets/npu/schedule/planned_contents.h"
#include "targets/npu/schedule/scheduler.h"

namespace py = pybind11;

namespace ort_aie::npu_target {
namespace {

// A tensor of a call. `values` are given for what ops read as they plan: integers, and frequencies.
struct GivenTensor {
  int64_t type = 0;  // TensorProto's number
  std::vector<int64_t> dims;
  bool constant = false;
  std::optional<std::vector<double>> values;
};

// Addresses that nobody reads: one range for each tensor, apart from all memory of this process.
class Addresses {
 public:
  void* Take(int64_t bytes) {
    constexpr uintptr_t kApart = 4096;
    const uintptr_t at = next_;
    next_ += (static_cast<uintptr_t>(bytes) / kApart + 2) * kApart;
    return reinterpret_cast<void*>(at);
  }

 private:
  uintptr_t next_ = uintptr_t{1} << 60;
};

// The inputs and outputs of a call, without data.
class GivenTensors final : public Program::Io {
 public:
  explicit GivenTensors(std::vector<GivenTensor> given) : given_(std::move(given)) {
    for (const GivenTensor& one : given_) {
      Tensor& tensor = tensors_.emplace_back();
      if (one.type == 0) continue;  // an input that is left out
      tensor.type = TypeOfNumber(one.type);
      Require(tensor.type != DataType::kOther, "an input has the unknown type ", one.type);
      tensor.shape = Shape(one.dims.begin(), one.dims.end());
      tensor.present = true;
      tensor.bytes = ByteCount(tensor.type, tensor.shape).As("an input");
      const bool integers = tensor.type == DataType::kInt32 || tensor.type == DataType::kInt64;
      const bool read = integers || (tensor.type == DataType::kFloat32 && one.values);
      Require(read == one.values.has_value(),
              "values are given for int32 and int64, and for some float, not for ",
              NameOf(tensor.type));
      tensor.data = read ? Values(one, tensor) : addresses_.Take(tensor.bytes);
    }
  }

  Tensor Input(int input) const override { return tensors_[static_cast<size_t>(input)]; }
  bool IsConstant(int input) const { return given_[static_cast<size_t>(input)].constant; }
  size_t size() const { return given_.size(); }
  void* Output(int, DataType type, const Shape& shape) const override {
    return addresses_.Take(ByteCount(type, shape).As("an output"));
  }

 private:
  const void* Values(const GivenTensor& one, const Tensor& tensor) {
    Require(static_cast<int64_t>(one.values->size()) == ElementCount(tensor.shape).As("an input"),
            "an input of shape ", tensor.shape, " was given ", one.values->size(), " values");
    std::vector<uint8_t>& bytes = *values_.emplace_back(std::make_unique<std::vector<uint8_t>>());
    for (const double value : *one.values) {
      if (tensor.type == DataType::kInt64) Append(static_cast<int64_t>(value), bytes);
      if (tensor.type == DataType::kFloat32) Append(static_cast<float>(value), bytes);
      if (tensor.type != DataType::kInt32) continue;
      const auto narrow = static_cast<int32_t>(value);
      Require(narrow == value, "an int32 is given as ", value);
      Append(narrow, bytes);
    }
    return bytes.data();
  }
  template <typename T>
  static void Append(T value, std::vector<uint8_t>& bytes) {
    const auto* from = reinterpret_cast<const uint8_t*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof(value));
  }

  const std::vector<GivenTensor> given_;
  std::vector<Tensor> tensors_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> values_;
  mutable Addresses addresses_;
};

template <typename Reasons>
std::vector<std::string> AllWords() {
  std::vector<std::string> all;
  for (int i = static_cast<int>(Reasons::kNone) + 1; i < static_cast<int>(Reasons::kCount); ++i) {
    all.push_back(Words(static_cast<Reasons>(i)));
  }
  return all;
}

py::list WordsOf(const std::vector<Reason>& reasons) {
  py::list words;
  for (const Reason reason : reasons) words.append(Words(reason));
  return words;
}

// The packages of a device, and what it would do with plans.
class NpuPackages {
 public:
  // load(name) gives the JSON of a package's manifest when it is needed, and the same with the
  // costs of predictions.
  NpuPackages(std::set<std::string, std::less<>> names, py::function load, bool one_xclbin)
      : names_(std::move(names)), load_(std::move(load)) {
    facts_.has = [this](std::string_view package) { return names_.contains(package); };
    facts_.overlay = [this](std::string_view package) -> const npu::Manifest* {
      return names_.contains(package) ? &Loaded(package).manifest : nullptr;
    };
    facts_.share_context = [this, one_xclbin](std::string_view a, std::string_view b) {
      return one_xclbin && names_.contains(a) && names_.contains(b);
    };
  }

  py::dict Schedule(const std::string& recipe_text, const py::list& inputs, bool planned, bool int8,
                    bool layers) {
    std::vector<GivenTensor> given;
    for (const py::handle& input : inputs) {
      GivenTensor& one = given.emplace_back();
      if (input.is_none()) continue;
      const auto tuple = input.cast<py::tuple>();
      one = {tuple[0].cast<int64_t>(), tuple[1].cast<std::vector<int64_t>>(), tuple[2].cast<bool>(),
             tuple[3].cast<std::optional<std::vector<double>>>()};
    }
    Recipe recipe = PlanRecipeFrom(recipe_text);
    Require(given.size() == static_cast<size_t>(recipe.inputs), "the recipe has ", recipe.inputs,
            " inputs, got ", given.size());
    const GivenTensors tensors(std::move(given));
    const Options options{.numerics = int8 ? NumericsOption::kInt8 : NumericsOption::kAuto,
                          .has_int8 = int8};
    const Program program(
        std::move(recipe),
        [&](int value) {
          const bool known = value < static_cast<int>(tensors.size()) && tensors.IsConstant(value);
          return known ? tensors.Input(value) : Tensor{};
        },
        options);
    py::dict result;
    try {
      program.Call(tensors, [&](Plan& plan) {
        if (!planned) plan.kept = nullptr;
        result = ScheduleOf(plan, planned, layers);
      });
    } catch (const std::bad_alloc&) {
      Fail(ErrorCode::kRuntime, "this machine has no room for the values between the steps");
    }
    return result;
  }

 private:
  py::dict ScheduleOf(const Plan& plan, bool planned, bool layers) {
    std::unique_lock lock(mutex_, std::defer_lock);
    {
      const py::gil_scoped_release release;  // whoever has the lock may be loading
      lock.lock();
    }
    const InlineThreadPool threads;
    PlannedContents contents(facts_, plan, planned);
    Scheduler scheduler(facts_, contents, plan, threads);
    const std::string layers_refused = scheduler.FindLayers(layers);
    py::list stages;
    while (!scheduler.done()) {
      Stage stage;
      py::list submissions;
      try {
        stage = scheduler.Next();
        if (!HasRoom(stage)) {
          if (stage.layers || !scheduler.Divide(stage)) scheduler.Refuse();
          continue;
        }
        for (const auto& batch : stage.batches) {
          for (const Submission& one : batch->submissions()) {
            submissions.append(SubmissionOf(one, contents.form()));
          }
        }
      } catch (const Error&) {  // a shape that an overlay does not take
        scheduler.Refuse();
        continue;
      }
      scheduler.Ran(stage);
      stages.append(StageOf(plan, stage, submissions));
    }
    py::dict result;
    result["stages"] = stages;
    result["layers_refused"] = layers_refused;
    result["form"] = py::make_tuple(contents.form().group, contents.form().minima);
    result["left"] = LeftOf(plan, scheduler);
    result["widened"] = WidenedOf(plan, planned, scheduler, contents.form());
    return result;
  }

  static bool HasRoom(const Stage& stage) {
    for (const auto& batch : stage.batches) {
      if (batch->memory.end() > static_cast<int64_t>(kMaxBufferBytes)) return false;
    }
    return true;
  }

  // The parts of a submission, and how many lists their runs are.
  py::dict SubmissionOf(const Submission& submission, const WeightForm& form) {
    py::list parts;
    int64_t lists = 1;
    npu::ListRoom room;
    for (const DesignPart& one : submission) {
      const std::string package = PackageOf(one.design, form);
      Require(facts_.has(package), "there is no overlay ", package);
      const npu::InstructionStream stream =
          npu::BuildStream(Loaded(package).interpreter, one.invocations);
      for (const npu::Run& run : stream.runs) {
        if (!room.Fits(run.predicted_seconds)) {
          ++lists;
          room = {};
        }
        room.Add(run.predicted_seconds);
      }
      py::list invocations;
      int64_t read = 0, written = 0;
      for (const npu::Invocation& invocation : one.invocations) {
        double seconds = 0;
        for (const npu::Segment& segment : Loaded(package).timer.Get(invocation)->segments) {
          seconds += segment.seconds;
          for (const npu::Operation& operation : segment.operations) {
            const auto* push = std::get_if<npu::Push>(&operation.what);
            if (push == nullptr) continue;
            (push->direction == npu::Direction::kMm2s ? read : written) += push->bytes;
          }
        }
        invocations.append(py::make_tuple(invocation.sequence, seconds));
      }
      py::dict part;
      part["design"] = std::string_view(one.design);
      part["package"] = package;
      part["runs"] = stream.runs.size();
      part["invocations"] = invocations;
      part["read"] = read;
      part["written"] = written;
      parts.append(part);
    }
    py::dict given;
    given["parts"] = parts;
    given["lists"] = lists;
    return given;
  }

  static py::dict StageOf(const Plan& plan, const Stage& stage, const py::list& submissions) {
    py::dict given;
    py::list steps;
    for (size_t i = stage.first; i < stage.end; ++i) steps.append(std::string(plan.NameOf(i)));
    given["steps"] = steps;
    given["host"] = stage.kind == Stage::Kind::kHost ? py::object(py::str(Words(stage.reason)))
                                                     : py::object(py::none());
    given["experts"] = stage.kind == Stage::Kind::kExperts;
    given["layers"] = stage.layers;
    given["device_steps"] = stage.device_steps;
    given["before"] = WordsOf(stage.before);
    given["after"] = WordsOf(stage.after);
    given["submissions"] = submissions;
    return given;
  }

  // By name, why the device leaves a step to the host.
  static py::dict LeftOf(const Plan& plan, const Scheduler& scheduler) {
    py::dict left;
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const Reason reason = scheduler.WhyNot(plan.steps[i]);
      if (reason != Reason::kNone) left[py::str(std::string(plan.NameOf(i)))] = Words(reason);
    }
    return left;
  }

  // Forms of weights, as (bits, group, minima), that the device reads only widened, and why.
  py::dict WidenedOf(const Plan& plan, bool planned, const Scheduler& scheduler,
                     const WeightForm& to) const {
    py::dict widened;
    for (const Step& step : plan.steps) {
      const auto* projection = std::get_if<MatMulStep>(&step);
      if (projection == nullptr || scheduler.WhyNot(step) != Reason::kNone) continue;
      const WeightForm& form = projection->form;
      const std::string why = WhyWidened(form, to, planned, facts_.has);
      if (why.empty()) continue;
      widened[py::make_tuple(q4nx::BitsOf(form.kind), form.group, form.minima)] = why;
    }
    return widened;
  }

  // Its streams are divided as sessions divide them, by the costs of the slowest machine; their
  // time is that of the machine of the predictions.
  struct Package {
    explicit Package(const std::pair<std::string, std::string>& json)
        : manifest(npu::ParseManifest(json.first)), timed(npu::ParseManifest(json.second)) {}

    const npu::Manifest manifest, timed;
    npu::Interpreter interpreter{manifest}, timer{timed};
  };
  Package& Loaded(std::string_view name) {
    auto found = loaded_.find(name);
    if (found == loaded_.end()) {
      const auto json = load_(std::string(name)).cast<std::pair<std::string, std::string>>();
      found = loaded_.emplace(name, std::make_unique<Package>(json)).first;
    }
    return *found->second;
  }

  const std::set<std::string, std::less<>> names_;
  const py::function load_;
  std::map<std::string, std::unique_ptr<Package>, std::less<>> loaded_;
  DeviceFacts facts_;
  std::mutex mutex_;  // guards what is loaded
};

}  // namespace

void DefineSchedule(py::module_& m) {
  m.def("reasons", &AllWords<Reason>);
  m.def("layer_reasons", &AllWords<LayerReason>);
  m.def(
      "packages",
      [](int64_t group, bool minima) {
        std::vector<std::string> packages;
        for (const Design design : kDesigns) {
          packages.push_back(PackageOf(design, {WeightKind::kQ4NX, group, minima}));
        }
        return packages;
      },
      py::arg("group"), py::arg("minima"));
  py::class_<NpuPackages>(m, "Packages")
      .def(py::init<std::set<std::string, std::less<>>, py::function, bool>(), py::arg("names"),
           py::arg("load"), py::arg("one_xclbin"))
      .def("schedule", &NpuPackages::Schedule, py::arg("recipe"), py::arg("inputs"), py::kw_only(),
           py::arg("planned") = true, py::arg("int8") = false, py::arg("layers") = true);
}

}  // namespace ort_aie::npu_target
