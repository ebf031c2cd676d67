#include "python/kernel_choice_module.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "targets/host/kernels/choice.h"
#include "targets/host/kernels/choice_file.h"
#include "targets/host/live_trials.h"
#include "targets/host/streamed_rows.h"
#include "targets/host/trials.h"

namespace py = pybind11;

namespace ort_aie::host {
namespace {

Cpu CpuNamed(const std::string& vendor, const std::string& isa, int family) {
  Cpu cpu;
  cpu.family = family;
  Require(vendor == "amd" || vendor == "intel" || vendor == "other",
          "vendor must be amd, intel or other, got ", vendor);
  cpu.vendor = vendor == "amd" ? Vendor::kAmd : vendor == "intel" ? Vendor::kIntel : Vendor::kOther;
  for (size_t i = 0; i < kIsas; ++i) {
    cpu.isa = static_cast<Isa>(i);
    cpu.avx_vnni = cpu.isa == Isa::kAvx2Vnni;
    if (isa == NameOf(cpu.isa)) return cpu;
  }
  Fail(ErrorCode::kInvalidArgument, "there is no isa ", isa);
}

// [(role, variant, origin, why)].
py::list AsList(const Choice& choice) {
  py::list roles;
  for (size_t role = 0; role < kRoles; ++role) {
    const char* origin = choice[role].origin == Origin::kForced     ? "forced"
                         : choice[role].origin == Origin::kMeasured ? "measured"
                                                                    : "rule";
    roles.append(py::make_tuple(NameOf(static_cast<Role>(role)), choice[role].variant, origin,
                                choice[role].why));
  }
  return roles;
}

py::dict VariantsByRole() {
  py::dict variants;
  for (size_t role = 0; role < kRoles; ++role) {
    py::list names;
    for (const char* name : VariantsOf(static_cast<Role>(role), ThisCpu())) names.append(name);
    variants[NameOf(static_cast<Role>(role))] = names;
  }
  return variants;
}

Role RoleNamed(const std::string& name) {
  for (size_t role = 0; role < kRoles; ++role) {
    if (name == NameOf(static_cast<Role>(role))) return static_cast<Role>(role);
  }
  Fail(ErrorCode::kInvalidArgument, "there is no role ", name);
}

// (path, state, why it is not used, date).
py::tuple MeasurementFound() {
  const std::string path = MeasurementPath();
  const Measurement found = ReadMeasurement(path);
  constexpr std::array<const char*, 4> kStates = {"none", "stale", "malformed", "good"};
  return py::make_tuple(path, kStates.at(static_cast<size_t>(found.state)), found.why, found.date);
}

std::string TextOf(const std::string& date, const std::map<std::string, std::string>& chosen) {
  Measurement measurement;
  measurement.date = date;
  for (const auto& [role, variant] : chosen) {
    measurement.variants.at(static_cast<size_t>(RoleNamed(role))) = variant.c_str();
  }
  const std::string text = MeasurementText(measurement);
  const Measurement read = ParseMeasurement(text);
  Require(read.state == Measurement::State::kGood, read.why);
  return text;
}

// [(role, threads, variant, samples, thousandths of the rule's time)]: what sessions use that begin
// now, for each role and number of threads of which there are samples.
py::list SamplesFound() {
  const Measurement found = ReadMeasurement(MeasurementPath());
  std::map<std::pair<Role, int>, size_t> counts;
  for (const auto& [candidate, ratios] : found.samples) {
    counts[{candidate.role, candidate.threads}] += ratios.size();
  }
  py::list roles;
  for (const auto& [key, count] : counts) {
    const auto& [role, threads] = key;
    const Chosen& by_rule = Selected().choice[static_cast<size_t>(role)];
    if (by_rule.origin != Origin::kRule) continue;
    const char* fastest = Fastest(role, threads, by_rule.variant, found.samples);
    const auto its = found.samples.find({role, threads, fastest});
    roles.append(py::make_tuple(NameOf(role), threads, fastest, count,
                                Middle(its == found.samples.end() ? Ratios() : its->second)));
  }
  return roles;
}

using SamplesOfRun = std::vector<std::tuple<std::string, int, std::string, Ratios>>;
void KeepSamplesOf(const std::string& path, const SamplesOfRun& run) {
  Samples samples;
  for (const auto& [role, threads, variant, ratios] : run) {
    samples[{RoleNamed(role), threads, variant}] = ratios;
  }
  KeepSamples(path, samples);
}

// A session's projections of one row (k): y (n), and the variant that it then uses.
py::tuple RunWithTrials(const py::array_t<float, py::array::c_style>& a,
                        const py::array_t<uint8_t, py::array::c_style>& blocks, int64_t n,
                        int calls) {
  const auto trials = LiveTrials::Join();
  py::array_t<float> y(n);
  MatMulStep step{};
  step.weights = blocks.data();
  step.rows = 1;
  step.k = a.size();
  step.n = n;
  step.a = a.data();
  step.y = y.mutable_data();
  step.type = DataType::kFloat32;
  step.numerics = Numerics::kInt8;
  Require(trials != nullptr, "there is nothing to try");
  Require(blocks.size() == q4nx::RowBlocks(n) * RowBytes(step), "blocks must be (N, K) in Q4NX");
  for (int i = 0; i < calls; ++i) trials->Run(step, trials->Now(), InlineThreadPool());
  return py::make_tuple(y, trials->choice()[static_cast<size_t>(Role::kOneRowInt8)].variant);
}

}  // namespace

void DefineKernelChoice(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;
  m.def("kernel_choice", [] { return AsList(Selected().choice); });
  m.def(
      "kernel_rules",
      [](const std::string& vendor, const std::string& isa, int family) {
        return AsList(ChoiceByRule(CpuNamed(vendor, isa, family)));
      },
      py::arg("vendor"), py::arg("isa"), py::arg("family"));
  m.def("kernel_rules_here", [] { return AsList(ChoiceByRule(ThisCpu())); });
  m.def("kernel_variants", &VariantsByRole);
  m.def("kernel_candidates", [](const std::string& role, const std::string& variant) {
    return CandidatesFor(RoleNamed(role), variant, ThisCpu());
  });
  m.def("kernel_samples", &SamplesFound);
  m.def("keep_samples", &KeepSamplesOf, py::arg("path"), py::arg("run"), Release());
  m.def("fastest_candidate", [](const std::vector<Ratios>& samples) { return Fastest(samples); });
  m.def("add_run", [](const Ratios& run, Ratios kept) {
    AddRun(run, kept);
    return kept;
  });
  m.def("run_with_trials", &RunWithTrials, py::arg("a"), py::arg("blocks"), py::arg("n"),
        py::arg("calls"));
  m.def("kernel_measurement", &MeasurementFound);
  m.def("kernel_measurement_text", &TextOf, py::arg("date"), py::arg("variants"));

  py::class_<Trials>(m, "KernelTrials")
      .def(py::init<const std::string&, int, int64_t>(), py::arg("folder"), py::arg("threads"),
           py::arg("weights") = 0, Release())
      .def_static(
          "candidates", [](const std::string& role) { return Trials::Candidates(RoleNamed(role)); },
          py::arg("role"))
      .def(
          "bytes_of",
          [](const Trials& trials, const std::string& role) {
            return trials.BytesOf(RoleNamed(role));
          },
          py::arg("role"))
      .def(
          "measure",
          [](const Trials& trials, const std::string& role, double seconds) {
            return trials.Measure(RoleNamed(role), seconds);
          },
          py::arg("role"), py::arg("seconds"), Release())
      .def("read_bandwidth", &Trials::ReadBandwidth, py::arg("seconds"), Release());
}

}  // namespace ort_aie::host
