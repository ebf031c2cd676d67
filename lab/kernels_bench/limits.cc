#include "limits.h"

#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ort_aie::host {
namespace {

// Each function names its instruction set, as the kernel files' options do. Callers must check that
// the CPU has it.

// Sixteen registers hold twelve accumulators and the operands. Twelve hide a latency of six cycles
// at two operations per cycle.
constexpr int kAccumulators = 12;

#if defined(__x86_64__)
#define ORT_AIE_REGISTER "+v"
#define ORT_AIE_TARGET(isa) __attribute__((target(isa)))
typedef __m128 Float128;
#else
#define ORT_AIE_REGISTER "+w"
#define ORT_AIE_TARGET(isa)
typedef float Float128 __attribute__((vector_size(16)));
#endif

// The empty asm keeps values in registers, and hides from the compiler that all turns are the same.
#define ORT_AIE_PEAK_LOOP(Name, isa, Vector, step)                     \
  ORT_AIE_TARGET(isa) void Name(int64_t turns) {                       \
    Vector acc[kAccumulators] = {};                                    \
    Vector x, y;                                                       \
    std::memset(&x, 0x3f, sizeof x); /* no zero or NaN in any type */  \
    y = x;                                                             \
    asm volatile("" : ORT_AIE_REGISTER(x), ORT_AIE_REGISTER(y));       \
    for (; turns > 0; --turns) {                                       \
      for (Vector& sum : acc) {                                        \
        sum = step;                                                    \
        asm volatile("" : ORT_AIE_REGISTER(sum), ORT_AIE_REGISTER(x)); \
      }                                                                \
    }                                                                  \
  }

#define ORT_AIE_MEMORY_LOOPS(Read, Copy, isa, Vector)                                         \
  ORT_AIE_TARGET(isa) void Read(const uint8_t* data, int64_t bytes) {                         \
    const auto* p = reinterpret_cast<const Vector*>(data);                                    \
    for (const auto* end = reinterpret_cast<const Vector*>(data + bytes); p != end; p += 8) { \
      for (int i = 0; i < 8; ++i) {                                                           \
        Vector x = p[i];                                                                      \
        asm volatile("" : ORT_AIE_REGISTER(x));                                               \
      }                                                                                       \
    }                                                                                         \
  }                                                                                           \
  ORT_AIE_TARGET(isa) void Copy(const uint8_t* data, int64_t bytes, uint8_t* to) {            \
    const auto* p = reinterpret_cast<const Vector*>(data);                                    \
    const auto* end = reinterpret_cast<const Vector*>(data + bytes);                          \
    for (auto* out = reinterpret_cast<Vector*>(to); p != end; p += 8, out += 8) {             \
      for (int i = 0; i < 8; ++i) {                                                           \
        Vector x = p[i];                                                                      \
        asm volatile("" : ORT_AIE_REGISTER(x));                                               \
        out[i] = x;                                                                           \
      }                                                                                       \
    }                                                                                         \
  }

constexpr double Flops(int per_instruction) { return kAccumulators * per_instruction; }

ORT_AIE_MEMORY_LOOPS(ReadPortable, CopyPortable, "sse2", Float128)
ORT_AIE_PEAK_LOOP(Fp32Portable, "sse2", Float128, sum + x * y)
constexpr PeakLoop kFp32Portable{Fp32Portable, Flops(2 * 4)};

#if defined(__x86_64__)
ORT_AIE_PEAK_LOOP(Int8Portable, "sse2", __m128i, _mm_add_epi32(sum, _mm_madd_epi16(x, y)))

ORT_AIE_MEMORY_LOOPS(ReadAvx2, CopyAvx2, "avx2", __m256)
ORT_AIE_PEAK_LOOP(Fp32Avx2, "avx2,fma", __m256, _mm256_fmadd_ps(x, y, sum))
ORT_AIE_PEAK_LOOP(Int8Avx2, "avx2", __m256i, _mm256_add_epi16(sum, _mm256_maddubs_epi16(x, y)))
ORT_AIE_PEAK_LOOP(Int8Avx2Vnni, "avx2,avxvnni", __m256i, _mm256_dpbusd_avx_epi32(sum, x, y))
constexpr PeakLoop kFp32Avx2{Fp32Avx2, Flops(2 * 8)};

ORT_AIE_MEMORY_LOOPS(ReadAvx512, CopyAvx512, "avx512f", __m512)
ORT_AIE_PEAK_LOOP(Fp32Avx512, "avx512f", __m512, _mm512_fmadd_ps(x, y, sum))
ORT_AIE_PEAK_LOOP(Int8Avx512, "avx512f,avx512vnni", __m512i, _mm512_dpbusd_epi32(sum, x, y))
ORT_AIE_PEAK_LOOP(Bf16Avx512, "avx512f,avx512bf16", __m512,
                  _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y))
constexpr PeakLoop kFp32Avx512{Fp32Avx512, Flops(2 * 16)};
constexpr PeakLoop kInt8Avx512{Int8Avx512, Flops(2 * 64)};
constexpr PeakLoop kBf16Avx512{Bf16Avx512, Flops(2 * 32)};

// Four products of whole tiles, which depend only on those of the turn before.
__attribute__((target("amx-tile,amx-bf16"))) void Bf16Amx(int64_t turns) {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);  // zeroes all tiles
  for (int64_t i = 0; i < turns; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}
constexpr PeakLoop kBf16Amx{Bf16Amx, 4.0 * 2 * 16 * 16 * 32};
#endif

constexpr LimitLoops kLoops[] = {
#if defined(__x86_64__)
    {"portable",
     ReadPortable,
     CopyPortable,
     kFp32Portable,
     kFp32Portable,
     {Int8Portable, Flops(2 * 8)}},
    {"avx2", ReadAvx2, CopyAvx2, kFp32Avx2, kFp32Avx2, {Int8Avx2, Flops(2 * 32)}},
    {"avx2_vnni", ReadAvx2, CopyAvx2, kFp32Avx2, kFp32Avx2, {Int8Avx2Vnni, Flops(2 * 32)}},
    {"avx512", ReadAvx512, CopyAvx512, kFp32Avx512, kFp32Avx512, kInt8Avx512},
    {"amx", ReadAvx512, CopyAvx512, kFp32Avx512, kBf16Amx, kInt8Avx512},
    {"avx512_bf16", ReadAvx512, CopyAvx512, kFp32Avx512, kBf16Avx512, kInt8Avx512},
#else
    {"portable", ReadPortable, CopyPortable, kFp32Portable, kFp32Portable, kFp32Portable},
#endif
};

}  // namespace

const LimitLoops& LimitLoopsOf(const char* isa) {
  for (const LimitLoops& loops : kLoops) {
    if (std::strcmp(loops.isa, isa) == 0) return loops;
  }
  return kLoops[0];
}

}  // namespace ort_aie::host
