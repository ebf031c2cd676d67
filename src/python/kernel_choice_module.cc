#include "python/kernel_choice_module.h"

#include <pybind11/stl.h>

#include <array>
#include <map>
#include <string>

#include "base/error.h"
#include "targets/host/kernels/choice.h"
#include "targets/host/kernels/choice_file.h"
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
  std::array<const char*, kRoles> variants{};
  for (const auto& [role, variant] : chosen) {
    variants.at(static_cast<size_t>(RoleNamed(role))) = variant.c_str();
  }
  const std::string text = MeasurementText(date, variants);
  const Measurement read = ParseMeasurement(text);
  Require(read.state == Measurement::State::kGood, read.why);
  return text;
}

}  // namespace

void DefineKernelChoice(py::module_& m) {
  m.def("kernel_choice", [] { return AsList(Selected().choice); });
  m.def(
      "kernel_rules",
      [](const std::string& vendor, const std::string& isa, int family) {
        return AsList(ChoiceByRule(CpuNamed(vendor, isa, family)));
      },
      py::arg("vendor"), py::arg("isa"), py::arg("family"));
  m.def("kernel_rules_here", [] { return AsList(ChoiceByRule(ThisCpu())); });
  m.def("kernel_variants", &VariantsByRole);
  m.def("kernel_measurement", &MeasurementFound);
  m.def("kernel_measurement_text", &TextOf, py::arg("date"), py::arg("variants"));

  using Release = py::call_guard<py::gil_scoped_release>;
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
