#include "targets/host/kernels/choice.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/platform.h"
#include "targets/host/kernels/choice_file.h"

namespace ort_aie::host {
namespace {

constexpr uint32_t Bit(Role role) { return 1u << static_cast<uint32_t>(role); }
constexpr uint32_t kAllRoles = (1u << kRoles) - 1;
constexpr uint32_t kOneRowInt8 = Bit(Role::kOneRowInt8), kOneRowBf16 = Bit(Role::kOneRowBf16);
constexpr uint32_t kOneRow = kOneRowInt8 | kOneRowBf16;
constexpr uint32_t kInt8 = kOneRowInt8 | Bit(Role::kRowsInt8);
constexpr uint32_t kManyRows =
    Bit(Role::kRowsInt8) | Bit(Role::kRowsBf16) | Bit(Role::kPromptAttention);

// A variant that can fill roles. The rules can be evaluated for any CPU on any machine, so
// `kernels` is null if this build does not have them.
struct Variant {
  const char* name;
  Isa needs;
  uint32_t roles;
  const Kernels* kernels;
};

#if defined(__x86_64__)
#define ORT_AIE_X86(kernels) (&(kernels))
#else
#define ORT_AIE_X86(kernels) nullptr
#endif

// What follows a "-" is where a variant prefetches to: past the caches (nta), into L1 (t0, and avx2
// and avx2_vnni without a suffix), into L2 (t1, and the others without a suffix) or L3 (t2); and
// how many blocks ahead if not one; or that it reads memory in order, and fetches nothing.
constexpr Variant kVariants[] = {
    {"portable", Isa::kPortable, kAllRoles, &kPortableKernels},
    {"avx2", Isa::kAvx2, kAllRoles, ORT_AIE_X86(kAvx2Kernels)},
    {"avx2-t1", Isa::kAvx2, kOneRow, ORT_AIE_X86(kAvx2T1Kernels)},
    {"avx2-t2", Isa::kAvx2, kOneRow, ORT_AIE_X86(kAvx2T2Kernels)},
    {"avx2-nta", Isa::kAvx2, kOneRow, ORT_AIE_X86(kAvx2NtaKernels)},
    {"avx2-t1-2-ahead", Isa::kAvx2, kOneRow, ORT_AIE_X86(kAvx2TwoAheadKernels)},
    {"avx2-t1-4-ahead", Isa::kAvx2, kOneRow, ORT_AIE_X86(kAvx2FourAheadKernels)},
    {"avx2_vnni", Isa::kAvx2Vnni, kInt8, ORT_AIE_X86(kAvx2VnniKernels)},
    {"avx2_vnni-t1", Isa::kAvx2Vnni, kOneRowInt8, ORT_AIE_X86(kAvx2VnniT1Kernels)},
    {"avx2_vnni-t2", Isa::kAvx2Vnni, kOneRowInt8, ORT_AIE_X86(kAvx2VnniT2Kernels)},
    {"avx2_vnni-nta", Isa::kAvx2Vnni, kOneRowInt8, ORT_AIE_X86(kAvx2VnniNtaKernels)},
    {"avx2_vnni-t1-2-ahead", Isa::kAvx2Vnni, kOneRowInt8, ORT_AIE_X86(kAvx2VnniTwoAheadKernels)},
    {"avx2_vnni-t1-4-ahead", Isa::kAvx2Vnni, kOneRowInt8, ORT_AIE_X86(kAvx2VnniFourAheadKernels)},
    {"avx512", Isa::kAvx512, kAllRoles & ~kOneRow, ORT_AIE_X86(kAvx512Kernels)},
    {"avx512-nta", Isa::kAvx512, kOneRow | Bit(Role::kLookups), ORT_AIE_X86(kAvx512NtaKernels)},
    {"avx512-t0", Isa::kAvx512, kOneRow, ORT_AIE_X86(kAvx512T0Kernels)},
    {"avx512-t1", Isa::kAvx512, kOneRow, ORT_AIE_X86(kAvx512Kernels)},
    {"avx512-t2", Isa::kAvx512, kOneRow, ORT_AIE_X86(kAvx512T2Kernels)},
    {"avx512-in-order", Isa::kAvx512, kOneRowInt8, ORT_AIE_X86(kAvx512InOrderKernels)},
    {"avx512-t1-2-ahead", Isa::kAvx512, kOneRow, ORT_AIE_X86(kAvx512TwoAheadKernels)},
    {"avx512-t1-4-ahead", Isa::kAvx512, kOneRow, ORT_AIE_X86(kAvx512FourAheadKernels)},
    {"avx512_bf16", Isa::kAvx512Bf16,
     kOneRowBf16 | Bit(Role::kRowsBf16) | Bit(Role::kPromptAttention),
     ORT_AIE_X86(kAvx512Bf16Kernels)},
    {"avx512_bf16-nta", Isa::kAvx512Bf16, kOneRowBf16, ORT_AIE_X86(kAvx512Bf16NtaKernels)},
    {"avx512_bf16-t0", Isa::kAvx512Bf16, kOneRowBf16, ORT_AIE_X86(kAvx512Bf16T0Kernels)},
    {"avx512_bf16-t2", Isa::kAvx512Bf16, kOneRowBf16, ORT_AIE_X86(kAvx512Bf16T2Kernels)},
    {"avx512_bf16-t1-2-ahead", Isa::kAvx512Bf16, kOneRowBf16,
     ORT_AIE_X86(kAvx512Bf16TwoAheadKernels)},
    {"avx512_bf16-t1-4-ahead", Isa::kAvx512Bf16, kOneRowBf16,
     ORT_AIE_X86(kAvx512Bf16FourAheadKernels)},
    {"amx", Isa::kAmx, kManyRows, ORT_AIE_X86(kAmxKernels)},
#ifdef ORT_AIE_STANDINS  // no rule names them
    {kAmxStandin, Isa::kPortable, kManyRows, &kAmxStandinKernels},
    {"avx2_vnni_standin", Isa::kAvx2, kInt8, ORT_AIE_X86(kAvx2VnniStandinKernels)},
    {kAvx512Bf16Standin, Isa::kAvx2,
     kOneRowBf16 | Bit(Role::kRowsBf16) | Bit(Role::kPromptAttention),
     ORT_AIE_X86(kAvx512Bf16StandinKernels)},
#endif
};

// --- the rules -----------------------------------------------------------------------------------

bool Any(const Cpu&) { return true; }
bool Amd(const Cpu& cpu) { return cpu.vendor == Vendor::kAmd; }
bool AmdFromZen5(const Cpu& cpu) { return Amd(cpu) && cpu.family >= 26; }

struct Rule {
  uint32_t roles;
  bool (*fits)(const Cpu& cpu);
  const char* variant;
  const char* why;
};

// The first line that fits the CPU, and whose variant it can run, applies. Measurements, where a
// line names them, are from AMD EPYCs (Zen 3 to Zen 5) and an Intel Xeon of the AMX generation, two
// cores of each (README.md has others). Fetching past the caches loses a third to a half on Zen 4
// and the Xeon, and gains little on Zen 5: a CPU that has not been measured fetches into L2.
constexpr Rule kRules[] = {
    {kOneRowBf16, AmdFromZen5, "avx512_bf16-nta",
     "AMD from Zen 5 on: dot products of bfloat16; a row 1.2 x as fast from memory as with "
     "multiply-adds of float32 on one thread, 1.5 x from the caches (Zen 5)"},
    {kOneRow, AmdFromZen5, "avx512-nta",
     "AMD from Zen 5 on: fetching past the caches; into L1 is 2 to 5 % slower, into L2 7 to 11 % "
     "(Zen 5)"},
    {Bit(Role::kLookups), AmdFromZen5, "avx512-nta",
     "AMD from Zen 5 on: fetching past the caches, as for one row"},
    {kOneRowInt8, Amd, "avx512-in-order",
     "AMD: reading memory in order: a token takes 0.90 (memory at 58 GB/s) to 0.98 (35 GB/s) of "
     "the time "
     "that it takes with fetching into L2, which is a third faster than into L1 or past the caches "
     "(Zen 4)"},
    {kOneRowInt8, Any, "avx512-t1",
     "fetching into L2, past which is half as fast (Xeon, AMX generation)"},
    {kOneRowBf16, Amd, "avx512_bf16",
     "AMD: dot products of bfloat16, fetching into L2; a row 1.4 x as fast from memory as with "
     "multiply-adds of float32, 8 rows twice (Zen 4)"},
    {kOneRowBf16, Any, "avx512-t1",
     "fetching into L2 (multiply-adds of float32 have not been measured)"},
    {Bit(Role::kRowsInt8), Any, "amx",
     "tiles of bfloat16: 1.3 to 1.5 TFLOP/s a core with the unpacking of weights, int8 by VNNI "
     "0.49 (a prototype's, on an Intel Xeon; these kernels have not been measured)"},
    {Bit(Role::kRowsBf16) | Bit(Role::kPromptAttention), Any, "amx",
     "tiles of bfloat16 have 15 times the rate of multiply-adds of float32 (Intel Xeon; these "
     "kernels have not been measured)"},
    {Bit(Role::kRowsBf16), Amd, "avx512_bf16", "AMD: dot products of bfloat16 at full rate"},
    {Bit(Role::kRowsBf16), Any, "avx512",
     "not AMD: multiply-adds of float32 make 243 GFLOP/s a core, dot products of bfloat16 121 "
     "(Xeon, AMX generation)"},
    {Bit(Role::kPromptAttention), Amd, "avx512_bf16",
     "AMD: dot products of bfloat16; a prompt of 4,096 tokens at 531 instead of 421 a second (Zen "
     "5)"},
    {Bit(Role::kPromptAttention), Any, "avx512",
     "not AMD: float32; a prompt of 512 tokens at 381 a second, with dot products of bfloat16 at "
     "364 (Xeon, AMX generation; longer ones are not measured)"},
    {kAllRoles, Any, "avx512",
     "the widest instruction set; whole models were measured on Zen 4, Zen 5 and the Xeon"},
    {kInt8, Any, "avx2_vnni",
     "AVX-VNNI: one instruction for four products and their sum, AVX2 has two; fetching as with "
     "AVX2 (not measured)"},
    {kOneRow, Any, "avx2",
     "AVX2: into L1, which is as fast as into L2 and past the caches: 77 to 93 % of a plain read "
     "in int8 (Zen 3)"},
    {kAllRoles, Any, "avx2", "the widest instruction set; whole models were measured on Zen 3"},
    {kAllRoles, Any, "portable", "no other variant runs on this CPU"},
};

// --- this CPU ------------------------------------------------------------------------------------

Cpu Detect() {
  Cpu cpu;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) != 0) {
    // The extended fields count for every family and model that runs this library.
    cpu.family = static_cast<int>(((a >> 8) & 15) + ((a >> 20) & 255));
    cpu.model = static_cast<int>(((a >> 4) & 15) + ((a >> 12) & 0xf0));
    cpu.stepping = static_cast<int>(a & 15);
  }
  cpu.vendor = __builtin_cpu_is("amd")     ? Vendor::kAmd
               : __builtin_cpu_is("intel") ? Vendor::kIntel
                                           : Vendor::kOther;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
  // Not every compiler's __builtin_cpu_supports knows this one.
  cpu.avx_vnni = avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
  const std::array<bool, kIsas> has = {true,
                                       avx2,
                                       cpu.avx_vnni || avx512,
                                       avx512,
                                       __builtin_cpu_supports("avx512bf16") != 0,
                                       WhyNoAmx() == nullptr};
  const auto lacks = std::find(has.begin(), has.end(), false);
  cpu.isa = static_cast<Isa>(lacks - has.begin() - 1);
#endif
  return cpu;
}

// --- assembling a table --------------------------------------------------------------------------

const Variant& Find(const char* name) {
  return *std::find_if(std::begin(kVariants), std::end(kVariants),
                       [&](const Variant& v) { return std::strcmp(v.name, name) == 0; });
}

bool Has(const Variant& variant, size_t role) { return (variant.roles & (1u << role)) != 0; }

template <typename Table, typename... Members>
void Copy(const Table& from, Table& to, Members Table::*... members) {
  static_assert((std::is_trivially_copyable_v<Members> && ...));
  (std::memcpy(&(to.*members), &(from.*members), sizeof(to.*members)), ...);
}

// Copies the kernels of a role.
void CopyRole(Role role, const Kernels& from, Kernels& to, LookupKernels& lookup,
              FileTable& files) {
  using K = Kernels;
  using L = LookupKernels;
  const auto each_file = [&](const auto& take) {
    for (size_t i = 0; i < std::size(files.kernels); ++i) take(from.files[i], files.kernels[i]);
  };
  switch (role) {
    case Role::kOneRowInt8:
      to.bytes.rows_int8 = from.bytes.rows_int8;
      each_file([](const FileKernels& f, FileKernels& t) { t.rows_int8 = f.rows_int8; });
      return Copy(from, to, &K::fused_dqp_int8, &K::rows_int8);
    case Role::kOneRowBf16:
      to.bytes.rows_bf16 = from.bytes.rows_bf16;
      each_file([](const FileKernels& f, FileKernels& t) { t.rows_bf16 = f.rows_bf16; });
      return Copy(from, to, &K::fused_dqp_bf16, &K::rows_bf16);
    case Role::kRowsInt8:
      Copy(*from.lookup, lookup, &L::unpack_block);
      to.bytes.unpack_block = from.bytes.unpack_block;
      to.most_rows.int8 = from.most_rows.int8;
      to.bytes.most_rows.int8 = from.bytes.most_rows.int8;
      each_file([](const FileKernels& f, FileKernels& t) {
        t.unpack = f.unpack;
        t.most_rows.int8 = f.most_rows.int8;
      });
      return Copy(from, to, &K::unpack_block, &K::gemm_int8, &K::gemm_int8_of_5_bits,
                  &K::gemm_int8_of_8_bits, &K::gemm_int8_of_powers, &K::gemm_int8_16,
                  &K::int8_blocking, &K::prompts_in_bf16);
    case Role::kRowsBf16:
      Copy(*from.lookup, lookup, &L::dequantize_block);
      to.bytes.dequantize_block = from.bytes.dequantize_block;
      to.most_rows.bf16 = from.most_rows.bf16;
      to.bytes.most_rows.bf16 = from.bytes.most_rows.bf16;
      each_file([](const FileKernels& f, FileKernels& t) {
        t.dequantize = f.dequantize;
        t.most_rows.bf16 = f.most_rows.bf16;
      });
      return Copy(from, to, &K::dequantize_block, &K::interleave_block, &K::gemm_bf16,
                  &K::bf16_blocking);
    case Role::kPromptAttention:
      return Copy(from, to, &K::transpose_keys, &K::scores_transposed, &K::bf16_attention);
    case Role::kFewRowsAttention:
      return Copy(from, to, &K::scores, &K::softcap, &K::softmax, &K::accumulate);
    case Role::kLookups:
      return Copy(*from.lookup, lookup, &L::bf16, &L::int8);
    case Role::kElementwise:
      return Copy(from, to, &K::float16_to_float, &K::bfloat16_to_float, &K::float_to_float16,
                  &K::float_to_bfloat16, &K::int8_to_float, &K::int4_to_float, &K::float_to_int8,
                  &K::float_to_int4, &K::quantize_int8, &K::quantize_int8_16, &K::group_sums,
                  &K::group_sums_16, &K::add, &K::multiply, &K::add_value, &K::multiply_value,
                  &K::sigmoid, &K::silu, &K::gelu, &K::gelu_tanh, &K::rms_norm, &K::gate_silu,
                  &K::gate_gelu_tanh, &K::vector_matrix, &K::update_state);
    case Role::kCount:
      return;
  }
}

// The table of one instruction set, as ORT_AIE_ISA forces it. A role gets the variant that the
// rules choose for a CPU with this instruction set. If that variant is of a narrower one and this
// one has kernels for the role, it gets those.
Choice WholeTable(Isa isa, Cpu cpu) {
  cpu.isa = isa;
  Choice choice = ChoiceByRule(cpu);
  const Variant& own = Find(NameOf(isa));
  for (size_t role = 0; role < kRoles; ++role) {
    const bool of_isa = Find(choice[role].variant).needs == isa;
    choice[role] = {!of_isa && Has(own, role) ? own.name : choice[role].variant, Origin::kForced,
                    "ORT_AIE_ISA"};
  }
  return choice;
}

// A variant in its roles, and the table of its instruction set in all others.
Choice OnWholeTable(const Variant& variant) {
  Choice choice = WholeTable(variant.needs, ThisCpu());
  for (size_t role = 0; role < kRoles; ++role) {
    if (Has(variant, role)) choice[role].variant = variant.name;
  }
  return choice;
}

// The whole tables of this CPU, the widest last. Nothing here has a destructor, because kernels run
// until the process ends.
struct WholeTables {
  WholeTables() {
#ifdef ORT_AIE_STANDINS
    for (const char* const name : {kAmxStandin, kAvx512Bf16Standin}) {
      if (ThisCpu().Runs(Find(name).needs)) Add(name, OnWholeTable(Find(name)));
    }
#endif
    for (size_t i = 0; i < kIsas; ++i) {
      const auto isa = static_cast<Isa>(i);
      if (ThisCpu().Runs(isa)) Add(NameOf(isa), WholeTable(isa, ThisCpu()));
    }
  }

  void Add(const char* name, const Choice& choice) {
    tables[count].PutTogether(choice);
    tables[count].kernels.name = name;
    pointers[count] = &tables[count].kernels;
    ++count;
  }

  std::array<Selection, kIsas + 2> tables;
  std::array<const Kernels*, kIsas + 3> pointers{};  // ends with a null pointer
  size_t count = 0;
};

const WholeTables& Whole() {
  static const WholeTables tables;
  return tables;
}

// A table for each variant that this CPU runs, in their order.
struct VariantTables {
  VariantTables() {
    for (size_t i = 0; i < tables.size(); ++i) {
      if (ThisCpu().Runs(kVariants[i].needs)) tables[i].PutTogether(OnWholeTable(kVariants[i]));
    }
  }
  std::array<Selection, std::size(kVariants)> tables;
};

// Applies the rules, and the measurements of this machine in their place.
void PutTogetherForThisMachine(Selection& selection) {
  Choice choice = ChoiceByRule(ThisCpu());
  const std::string path = MeasurementPath();
  const Measurement measurement = ReadMeasurement(path);
  for (size_t role = 0; role < kRoles; ++role) {
    if (measurement.variants[role] == nullptr) continue;
    choice[role] = {measurement.variants[role], Origin::kMeasured, selection.measured_on};
  }
  std::snprintf(selection.measured_on, sizeof selection.measured_on, "%s",
                measurement.date.c_str());
  selection.PutTogether(choice);
  if (measurement.state == Measurement::State::kMalformed) {
    std::fprintf(stderr,
                 "ort_aie_ep: %s is not a file of ort-aie tune (%s); the rules choose kernels\n",
                 path.c_str(), measurement.why.c_str());
  }
}

const Selection& Select() {
  const std::string wanted = platform::Environment("ORT_AIE_ISA");
  const bool forced = !wanted.empty();
  for (size_t i = 0; forced && i < Whole().count; ++i) {
    if (Whole().tables[i].kernels.name == wanted) return Whole().tables[i];
  }
  static Selection chosen;
  PutTogetherForThisMachine(chosen);
  if (forced) {
    const char* why = wanted == NameOf(Isa::kAmx) ? WhyNoAmx() : nullptr;
    std::fprintf(stderr, "ort_aie_ep: ORT_AIE_ISA=%s is not available%s%s; using %s\n",
                 wanted.c_str(), why != nullptr ? ": " : " on this CPU", why != nullptr ? why : "",
                 chosen.kernels.name);
  }
  return chosen;
}

}  // namespace

const char* NameOf(Role role) {
  constexpr std::array<const char*, kRoles> kNames = {
      "one row, int8",        "one row, bf16",         "rows, int8", "rows, bf16",
      "attention of prompts", "attention of few rows", "lookups",    "elementwise"};
  return kNames.at(static_cast<size_t>(role));
}

const char* NameOf(Isa isa) {
  constexpr std::array<const char*, kIsas> kNames = {"portable", "avx2",        "avx2_vnni",
                                                     "avx512",   "avx512_bf16", "amx"};
  return kNames.at(static_cast<size_t>(isa));
}

const Cpu& ThisCpu() {
  static const Cpu cpu = Detect();
  return cpu;
}

std::string CpuName() {
  std::string name;
#if defined(__x86_64__)
  unsigned registers[4] = {};
  const auto append = [&](std::initializer_list<int> order) {
    for (const int i : order) {
      const auto* bytes = reinterpret_cast<const char*>(&registers[i]);
      name.append(bytes, strnlen(bytes, sizeof registers[i]));
    }
  };
  const auto ask = [&](unsigned leaf) {
    return __get_cpuid(leaf, &registers[0], &registers[1], &registers[2], &registers[3]) != 0;
  };
  if (ask(0)) append({1, 3, 2});
  const Cpu& cpu = ThisCpu();
  name += " family " + std::to_string(cpu.family) + " model " + std::to_string(cpu.model) +
          " stepping " + std::to_string(cpu.stepping) + ", ";
  for (unsigned leaf = 0x80000002; leaf <= 0x80000004 && ask(leaf); ++leaf) append({0, 1, 2, 3});
  name.erase(name.find_last_not_of(" \n") + 1);
#endif
  return name + ", " + NameOf(ThisCpu().isa);
}

std::vector<const char*> VariantsOf(Role role, const Cpu& cpu) {
  std::vector<const char*> names;
  for (const Variant& variant : kVariants) {
    if (Has(variant, static_cast<size_t>(role)) && cpu.Runs(variant.needs)) {
      names.push_back(variant.name);
    }
  }
  return names;
}

std::vector<const char*> CandidatesFor(Role role, std::string_view variant, const Cpu& cpu) {
  const auto bits = [](std::string_view name) { return name.substr(0, name.find('-')); };
  std::vector<const char*> names = VariantsOf(role, cpu);
  std::erase_if(
      names, [&](std::string_view name) { return name == variant || bits(name) != bits(variant); });
  return names;
}

const Kernels* VariantNamed(const char* name) {
  static const VariantTables tables;
  for (size_t i = 0; i < std::size(kVariants); ++i) {
    if (std::strcmp(kVariants[i].name, name) == 0 && ThisCpu().Runs(kVariants[i].needs)) {
      return &tables.tables[i].kernels;
    }
  }
  return nullptr;
}

Choice ChoiceByRule(const Cpu& cpu) {
  Choice choice{};
  for (size_t role = 0; role < kRoles; ++role) {
    const auto fits = [&](const Rule& rule) {
      const Variant& variant = Find(rule.variant);
      return (rule.roles & (1u << role)) != 0 && Has(variant, role) && rule.fits(cpu) &&
             cpu.Runs(variant.needs);
    };
    const Rule& rule = *std::find_if(std::begin(kRules), std::end(kRules), fits);
    choice[role] = {rule.variant, Origin::kRule, rule.why};
  }
  return choice;
}

void Selection::PutTogether(const Choice& of) {
  choice = of;
  Isa widest = Isa::kPortable;
  for (size_t role = 0; role < kRoles; ++role) {
    const Variant& variant = Find(choice[role].variant);
    CopyRole(static_cast<Role>(role), *variant.kernels, kernels, lookup, files);
    widest = std::max(widest, variant.needs);
  }
  kernels.name = NameOf(widest);
  kernels.lookup = &lookup;
  kernels.files = files.kernels;
}

const Selection& Selected() {
  static const Selection& selection = Select();
  return selection;
}

const Kernels& SelectedKernels() { return Selected().kernels; }

const Kernels* const* AvailableKernels() { return Whole().pointers.data(); }

}  // namespace ort_aie::host
