// Which kernels a CPU runs, role by role: what is fastest on one CPU is not on another, and the
// widest instruction set is not always the fastest.
//
// Roles are what a choice is made for; variants are what there is to choose from: tables of
// kernels, of which a role takes its own. The rules (choice.cc) say by vendor and features which
// variant fills a role, and which measurement that rests on. `ort-aie tune` overrides them by
// measurements of this machine (choice_file.h), and ORT_AIE_ISA forces a whole table.
//
// To add a variant: a table in a kernel file, a line in kVariants, and a line in kRules where it is
// to be the default. To add a kernel: a member of Kernels, and the role in Take that it belongs to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {

enum class Role {
  kOneRowInt8,        // FusedDQP, and that of a few rows, whose results are the same
  kOneRowBf16,        //
  kRowsInt8,          // GEMM with what unpacks its weights
  kRowsBf16,          //
  kPromptAttention,   // many rows of queries
  kFewRowsAttention,  // straight from the cache
  kLookups,           // one row by weights of two bits
  kElementwise,       // conversions, norms, gates, quantised activations
  kCount
};
constexpr auto kRoles = static_cast<size_t>(Role::kCount);
const char* NameOf(Role role);

// Instruction sets, each of which has all before it.
enum class Isa { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmx, kCount };
constexpr auto kIsas = static_cast<size_t>(Isa::kCount);
const char* NameOf(Isa isa);  // as ORT_AIE_ISA has it

enum class Vendor { kAmd, kIntel, kOther };

// What the rules look at.
struct Cpu {
  Vendor vendor = Vendor::kOther;
  Isa isa = Isa::kPortable;  // the widest
};
const Cpu& ThisCpu();
// Its vendor, family, model and stepping, brand, and widest instruction set.
std::string CpuName();

enum class Origin { kRule, kMeasured, kForced };

// A variant for a role, who chose it, and why.
struct Chosen {
  const char* variant;
  Origin origin;
  const char* why;
};
using Choice = std::array<Chosen, kRoles>;  // by role

// The rules alone: the same for the same CPU, on whatever machine this runs.
Choice ChoiceByRule(const Cpu& cpu);

// The names of the variants of a role that a CPU can run.
std::vector<const char*> VariantsOf(Role role, const Cpu& cpu);
// The table that a variant takes its kernels from; null where there is none of that name, or this
// CPU cannot run it.
const Kernels* VariantNamed(const char* name);

// A table put together of variants, and how that came about. It is not copied: the kernels point to
// the lookups.
struct Selection {
  Selection() = default;
  Selection(const Selection&) = delete;
  Selection& operator=(const Selection&) = delete;

  void PutTogether(const Choice& of);

  Kernels kernels{};  // named by the widest instruction set among them
  LookupKernels lookup{};
  Choice choice{};
  char measured_on[11] = "";  // yyyy-mm-dd, where something is of a measurement
};

// What the library runs: SelectedKernels() are its kernels.
const Selection& Selected();

}  // namespace ort_aie::host
