// Whether this CPU, the operating system and the kernel let a process use AMX. Compiled for the
// baseline.
#include "targets/host/kernels/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <string>

#include "base/platform.h"
#endif

namespace ort_aie::host {

#if defined(__x86_64__)
namespace {

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf Cpuid(unsigned leaf, unsigned subleaf) {
  Leaf values;
  __get_cpuid_count(leaf, subleaf, &values.eax, &values.ebx, &values.ecx, &values.edx);
  return values;
}

constexpr bool Bit(unsigned value, int bit) { return (value >> bit & 1) != 0; }

// Whether the operating system saves the state of tiles: bits 17 and 18 of XCR0.
bool TilesAreSaved() {
  if (!Bit(Cpuid(1, 0).ecx, 27)) return false;  // OSXSAVE: XGETBV is allowed
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low >> 17 & 3) == 3;
}

// What the kernels rely on: palette 1 with 8 tiles of 16 rows of 64 bytes.
bool HasPalette() {
  const Leaf palette = Cpuid(0x1d, 1);
  return palette.ebx >> 16 == 8 && (palette.ebx & 0xffff) == 64 && (palette.ecx & 0xffff) == 16;
}

std::string Ask() {
  const unsigned features = Cpuid(7, 0).edx;
  if (!Bit(features, 24) || !Bit(features, 22)) {
    return "this CPU has no AMX (amx_tile, amx_bf16)";
  }
  if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vbmi") ||
      !__builtin_cpu_supports("avx512vnni")) {
    return "AMX is used together with AVX-512 with BF16, VNNI and VBMI, which this CPU does not "
           "report";
  }
  if (!HasPalette()) return "this CPU's tiles are not 8 tiles of 16 rows of 64 bytes";
  if (!TilesAreSaved()) return "the operating system does not save the state of tiles (XCR0)";
  return platform::AskForTiles();
}

}  // namespace

const char* WhyNoAmx() {
  static const std::string& why = *new std::string(Ask());
  return why.empty() ? nullptr : why.c_str();
}

#else

const char* WhyNoAmx() { return "AMX exists only on x86-64"; }

#endif

}  // namespace ort_aie::host
