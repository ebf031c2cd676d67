#include "python/kernel_choice_module.h"

#include <pybind11/stl.h>

#include <string>

#include "base/error.h"
#include "targets/host/kernels/choice.h"

namespace py = pybind11;

namespace ort_aie::host {
namespace {

Cpu CpuNamed(const std::string& vendor, const std::string& isa) {
  Cpu cpu;
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
    const char* origin = choice[role].origin == Origin::kForced ? "forced" : "rule";
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

}  // namespace

void DefineKernelChoice(py::module_& m) {
  m.def("kernel_choice", [] { return AsList(Selected().choice); });
  m.def(
      "kernel_rules",
      [](const std::string& vendor, const std::string& isa) {
        return AsList(ChoiceByRule(CpuNamed(vendor, isa)));
      },
      py::arg("vendor"), py::arg("isa"));
  m.def("kernel_variants", &VariantsByRole);
}

}  // namespace ort_aie::host
