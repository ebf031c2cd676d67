// What Python calls in src/npu: streams of a manifest, and the encoder by itself for tests.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "npu/manifest.h"
#include "npu/stream.h"
#include "npu/stream_cache.h"
#include "npu/txn.h"
#include "python/npu_module.h"

namespace py = pybind11;

namespace ort_aie::npu {
namespace {

py::array_t<uint32_t> Words(const std::vector<uint32_t>& words) {
  return py::array_t<uint32_t>(static_cast<py::ssize_t>(words.size()), words.data());
}

// [{"sequence": name, "parameters": {name: int}, "arguments": {name: (run argument, offset)}}]
Invocations PlanOf(const py::list& invocations) {
  Invocations plan;
  for (const py::handle item : invocations) {
    const auto dict = py::cast<py::dict>(item);
    for (const auto& [key, value] : dict) {
      const auto name = py::cast<std::string>(key);
      Require(name == "sequence" || name == "parameters" || name == "arguments",
              "an invocation has no \"", name, "\"; expected sequence, parameters and arguments");
    }
    Require(dict.size() == 3, "an invocation must have a sequence, parameters and arguments, got ",
            dict.size(), " of these");
    Invocation invocation{py::cast<std::string>(dict["sequence"]),
                          py::cast<std::map<std::string, int64_t>>(dict["parameters"]),
                          {}};
    for (const auto& [name, view] :
         py::cast<std::map<std::string, std::pair<int, int64_t>>>(dict["arguments"])) {
      invocation.arguments[name] = {view.first, view.second};
    }
    plan.push_back(std::move(invocation));
  }
  return plan;
}

std::string SourceText(const Manifest& manifest, const Invocations& plan, const OpSource& source) {
  const std::string& name = plan[static_cast<size_t>(source.invocation)].sequence;
  for (const Sequence& sequence : manifest.sequences) {
    if (sequence.name != name) continue;
    return Concat("[", source.invocation, "] ", name, " ",
                  sequence.paths[static_cast<size_t>(source.path)]);
  }
  Fail(ErrorCode::kRuntime, "an operation does not belong to a sequence");
}

py::list Runs(const Manifest& manifest, const Invocations& plan, const InstructionStream& stream) {
  py::list runs;
  for (const Run& run : stream.runs) {
    py::list sources;
    for (const OpSource& source : run.sources) sources.append(SourceText(manifest, plan, source));
    py::dict entry;
    entry["words"] = Words(run.words);
    entry["variable"] = Words(run.variable);
    entry["predicted_seconds"] = run.predicted_seconds;
    entry["sources"] = sources;
    entry["buffers"] = run.buffers;
    runs.append(entry);
  }
  return runs;
}

py::list Build(const std::string& manifest_json, const py::list& invocations) {
  const Invocations plan = PlanOf(invocations);
  Manifest manifest;
  InstructionStream stream;
  {
    const py::gil_scoped_release release;
    manifest = ParseManifest(manifest_json);
    Interpreter interpreter(manifest);
    stream = BuildStream(interpreter, plan);
  }
  return Runs(manifest, plan, stream);
}

// A cache that any number of Python threads may use, unless it shares its memory.
class PythonStreamCache {
 public:
  PythonStreamCache(const std::string& manifest_json, size_t capacity,
                    std::shared_ptr<StreamMemory> memory)
      : cache_(ParseManifest(manifest_json), std::move(memory), capacity) {}

  py::dict Get(const py::list& invocations) {
    const Invocations plan = PlanOf(invocations);
    InstructionStream stream;
    uint64_t id;
    StreamCache::Outcome outcome;
    std::vector<WordRange> changed;
    {
      const py::gil_scoped_release release;
      const std::scoped_lock lock(mutex_);
      StreamCache::Lookup lookup = cache_.Get(plan);
      stream = lookup.stream;
      id = lookup.id;
      outcome = lookup.outcome;
      changed = std::move(lookup.changed);
    }
    py::list ranges;
    for (const WordRange& range : changed) {
      ranges.append(py::make_tuple(range.run, range.begin, range.end));
    }
    py::dict result;
    result["runs"] = Runs(cache_.manifest(), plan, stream);
    result["id"] = id;
    result["outcome"] = outcome == StreamCache::Outcome::kSame      ? "same"
                        : outcome == StreamCache::Outcome::kPatched ? "patched"
                                                                    : "encoded";
    result["changed"] = ranges;
    return result;
  }

 private:
  std::mutex mutex_;
  StreamCache cache_;
};

Direction DirectionNamed(const std::string& name) {
  Require(name == "S2MM" || name == "MM2S", "a direction must be S2MM or MM2S, got ", name);
  return name == "S2MM" ? Direction::kS2mm : Direction::kMm2s;
}

// Words of any operations, each a tuple of a name and the arguments of TxnWriter's method.
py::array_t<uint32_t> Encode(int generation, int rows, int columns, const py::list& operations) {
  TxnWriter txn({generation, rows, columns});
  for (const py::handle item : operations) {
    const auto op = py::cast<py::tuple>(item);
    Require(!op.empty(), "an operation must be (name, arguments...), got an empty tuple");
    const auto name = py::cast<std::string>(op[0]);
    const auto number = [&](size_t i) { return py::cast<uint32_t>(op[i]); };
    const auto integer = [&](size_t i) { return py::cast<int>(op[i]); };
    const auto arguments = [&](size_t count) {
      Require(op.size() == count + 1, "the operation ", name, " takes ", count, " arguments, got ",
              op.size() - 1);
    };
    if (name == "write") {
      arguments(2);
      txn.Write(number(1), number(2));
    } else if (name == "mask_write") {
      arguments(3);
      txn.MaskWrite(number(1), number(2), number(3));
    } else if (name == "block_write") {
      arguments(2);
      txn.BlockWrite(number(1), py::cast<std::vector<uint32_t>>(op[2]));
    } else if (name == "wait") {
      arguments(6);
      txn.Wait(integer(1), integer(2), DirectionNamed(py::cast<std::string>(op[3])), integer(4),
               integer(5), integer(6));
    } else if (name == "address_patch") {
      arguments(3);
      txn.AddressPatch(number(1), integer(2), py::cast<uint64_t>(op[3]));
    } else {
      Fail(ErrorCode::kInvalidArgument, "unknown operation ", name,
           ", expected write, mask_write, block_write, wait or address_patch");
    }
  }
  return Words(std::move(txn).Finish());
}

}  // namespace

void DefineStreams(py::module_& m) {
  m.attr("DISPATCH_SECONDS") = npu::kDispatchSeconds;  // part of each run's prediction
  m.def("build", &Build, py::arg("manifest_json"), py::arg("plan"));
  m.def("encode", &Encode, py::arg("generation"), py::arg("rows"), py::arg("columns"),
        py::arg("operations"));
  m.def("register", &Register, py::arg("column"), py::arg("row"), py::arg("offset"));
  m.attr("STREAM_UNIT") = kStreamUnit;
  py::class_<StreamMemory, std::shared_ptr<StreamMemory>>(m, "StreamMemory")
      .def(py::init<size_t>(), py::arg("bytes") = kInstructionBytes)
      .def_property_readonly("used", &StreamMemory::used)
      .def_property_readonly("dropped", &StreamMemory::dropped);
  py::class_<PythonStreamCache>(m, "StreamCache")
      .def(py::init([](const std::string& manifest_json, size_t capacity,
                       std::shared_ptr<StreamMemory> memory) {
             if (memory == nullptr) memory = std::make_shared<StreamMemory>(kInstructionBytes);
             return std::make_unique<PythonStreamCache>(manifest_json, capacity, std::move(memory));
           }),
           py::arg("manifest_json"), py::arg("capacity") = 64, py::arg("memory") = nullptr)
      .def("get", &PythonStreamCache::Get, py::arg("plan"));
}

}  // namespace ort_aie::npu
