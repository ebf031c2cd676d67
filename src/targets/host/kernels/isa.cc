// Which kernels this CPU runs. Compiled for the baseline, like everything but the kernel files.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {

const Kernels* const* Detect() {
  static const Kernels* tables[5] = {&kPortableKernels};
#if defined(__x86_64__)
  size_t count = 1;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    tables[count++] = &kAvx2Kernels;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi")) {
      const Kernels& avx512 = __builtin_cpu_is("amd") ? kAvx512AmdKernels : kAvx512Kernels;
      tables[count++] = &avx512;
      if (__builtin_cpu_supports("avx512bf16")) {
        static Kernels with_bf16 = avx512;
        with_bf16.name = "avx512_bf16";
        with_bf16.gemm_bf16 = GemmBf16Avx512Bf16;
        with_bf16.bf16_attention = &kAvx512Bf16Attention;
        tables[count++] = &with_bf16;
      }
    }
  }
#endif
  return tables;
}

const Kernels& Select() {
  const Kernels* const* tables = AvailableKernels();
  const Kernels* best = tables[0];
  const char* wanted = std::getenv("ORT_AIE_ISA");
  if (wanted != nullptr && *wanted == '\0') wanted = nullptr;
  for (const Kernels* const* table = tables; *table != nullptr; ++table) {
    if (wanted != nullptr && std::strcmp((*table)->name, wanted) == 0) return **table;
    best = *table;
  }
  if (wanted != nullptr) {
    std::fprintf(stderr, "ort_aie_ep: ORT_AIE_ISA=%s is not available on this CPU; using %s\n",
                 wanted, best->name);
  }
  return *best;
}

}  // namespace

const Kernels* const* AvailableKernels() {
  static const Kernels* const* tables = Detect();
  return tables;
}

const Kernels& SelectedKernels() {
  static const Kernels& kernels = Select();
  return kernels;
}

}  // namespace ort_aie::host
