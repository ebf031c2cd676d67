// Which kernels a CPU runs, role by role. The fastest kernels on one CPU are not the fastest on
// another, and the widest instruction set is not always the fastest.
//
// A choice is made for each role. Variants are the candidates: tables of kernels, from which a role
// takes its own. The rules (choice.cc) say, by vendor and features, which variant fills a role, and
// on which measurement that is based. `ort-aie tune` overrides them with measurements of this
// machine (choice_file.h), and ORT_AIE_ISA forces a whole table. Sessions try what gives the same
// bits as the rules' variant on their own work (samples.h).
//
// Variants whose names begin alike, up to the "-", give the same bits in the roles that they share:
// what follows is only how they prefetch.
//
// To add a variant: a table in a kernel file, with at least the kernels of its roles, a line in
// kVariants, and a line in kRules if it should be the default. To add a kernel: a member of
// Kernels, and its role in Take.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {

enum class Role {
  kOneRowInt8,        // FusedDQP of one row and of a few rows, whose results are the same
  kOneRowBf16,        //
  kRowsInt8,          // GEMM, with the unpacking of its weights
  kRowsBf16,          //
  kPromptAttention,   // many rows of queries
  kFewRowsAttention,  // straight from the cache
  kLookups,           // one row by weights of two bits
  kElementwise,       // conversions, norms, gates, quantised activations
  kCount
};
constexpr auto kRoles = static_cast<size_t>(Role::kCount);
const char* NameOf(Role role);

// Instruction sets; each includes all before it, but a CPU with AVX-512 may lack AVX-VNNI.
enum class Isa { kPortable, kAvx2, kAvx2Vnni, kAvx512, kAvx512Bf16, kAmx, kCount };
constexpr auto kIsas = static_cast<size_t>(Isa::kCount);
const char* NameOf(Isa isa);  // as in ORT_AIE_ISA

enum class Vendor { kAmd, kIntel, kOther };

// The facts that the rules use.
struct Cpu {
  Vendor vendor = Vendor::kOther;
  // As CPUID and the vendor's documents number them: Zen 5 is family 26 of AMD. 0: not known.
  int family = 0, model = 0, stepping = 0;
  Isa isa = Isa::kPortable;  // the widest
  bool avx_vnni = false;

  bool Runs(Isa needs) const { return needs <= isa && (needs != Isa::kAvx2Vnni || avx_vnni); }
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

// Only the rules: the same result for the same CPU, whichever machine runs this.
Choice ChoiceByRule(const Cpu& cpu);

// The names of the variants of a role that a CPU can run.
std::vector<const char*> VariantsOf(Role role, const Cpu& cpu);
// Those of them that give the same bits as `variant`, without itself.
std::vector<const char*> CandidatesFor(Role role, std::string_view variant, const Cpu& cpu);
// A variant in its roles, on the whole table of its instruction set; null if the name is unknown,
// or this CPU cannot run it.
const Kernels* VariantNamed(const char* name);

// A table assembled from variants, and the reasons for them. It is not copied, because the kernels
// point to the lookups and the files.
struct Selection {
  Selection() = default;
  Selection(const Selection&) = delete;
  Selection& operator=(const Selection&) = delete;

  void PutTogether(const Choice& of);

  Kernels kernels{};  // named after the widest instruction set among them
  LookupKernels lookup{};
  FileTable files{};
  Choice choice{};
  char measured_on[11] = "";  // yyyy-mm-dd, if any choice is from a measurement
};

// What the library runs: SelectedKernels() returns its kernels.
const Selection& Selected();

}  // namespace ort_aie::host
