// What avx512_bf16.inc and rows_avx512_bf16.inc use of AVX-512 in plain C++, under the names of the
// intrinsics. Code that includes this header instead of <immintrin.h>, inside a namespace, runs on
// any CPU; only what those files use is here.
//
// Source of the semantics: Intel's Software Developer's Manual, volume 2; that of VDPBF16PS on an
// AMD EPYC (Zen 4) is the same. With several NaN inputs, it is not specified which NaN results.

// Inlined into kernels whose loops are unrolled, these would take the compiler minutes.
#define ORT_AIE_CALL __attribute__((noinline)) inline

typedef float __m512 __attribute__((vector_size(64), may_alias));
typedef int64_t __m512i __attribute__((vector_size(64), may_alias));
typedef int64_t __m256i __attribute__((vector_size(32), may_alias));
typedef int64_t __m128i __attribute__((vector_size(16), may_alias));
typedef int16_t __m512bh __attribute__((vector_size(64), may_alias));
typedef uint16_t __mmask16;

typedef uint8_t standin_bytes __attribute__((vector_size(64)));
typedef uint16_t standin_words __attribute__((vector_size(64)));
typedef int32_t standin_ints __attribute__((vector_size(64)));
typedef uint32_t standin_bits __attribute__((vector_size(64)));

enum StandinHint { _MM_HINT_NTA, _MM_HINT_T0, _MM_HINT_T1, _MM_HINT_T2 };
constexpr int _MM_FROUND_TO_NEG_INF = 1, _MM_FROUND_NO_EXC = 8;
inline void _mm_prefetch(const char*, StandinHint) {}

// --- memory --------------------------------------------------------------------------------------

template <typename V>
inline V StandinLoad(const void* p) {
  V v = {};
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline __m512 _mm512_loadu_ps(const void* p) { return StandinLoad<__m512>(p); }
inline __m512i _mm512_load_si512(const void* p) { return StandinLoad<__m512i>(p); }
inline __m512i _mm512_loadu_si512(const void* p) { return StandinLoad<__m512i>(p); }
inline __m256i _mm256_loadu_si256(const __m256i* p) { return StandinLoad<__m256i>(p); }
inline void _mm512_storeu_ps(void* p, __m512 v) { __builtin_memcpy(p, &v, sizeof v); }
inline void _mm512_store_si512(void* p, __m512i v) { __builtin_memcpy(p, &v, sizeof v); }
inline void _mm512_storeu_si512(void* p, __m512i v) { __builtin_memcpy(p, &v, sizeof v); }

// 16 lanes of T, of which the mask selects some; memory of the others is not touched.
template <typename V, typename T>
ORT_AIE_CALL V StandinMaskedLoad(__mmask16 mask, const void* p) {
  if (mask == 0xffff) return StandinLoad<V>(p);
  T lanes[16] = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) __builtin_memcpy(lanes + i, static_cast<const T*>(p) + i, sizeof(T));
  }
  return StandinLoad<V>(lanes);
}
ORT_AIE_CALL void StandinMaskedStore(void* p, __mmask16 mask, const void* v) {
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) {
      __builtin_memcpy(static_cast<char*>(p) + 4 * i, static_cast<const char*>(v) + 4 * i, 4);
    }
  }
}
inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void* p) {
  return StandinMaskedLoad<__m512, float>(mask, p);
}
inline __m512i _mm512_maskz_loadu_epi32(__mmask16 mask, const void* p) {
  return StandinMaskedLoad<__m512i, int32_t>(mask, p);
}
inline __m256i _mm256_maskz_loadu_epi16(__mmask16 mask, const void* p) {
  return StandinMaskedLoad<__m256i, int16_t>(mask, p);
}
inline __m128i _mm_maskz_loadu_epi8(__mmask16 mask, const void* p) {
  return StandinMaskedLoad<__m128i, int8_t>(mask, p);
}
inline void _mm512_mask_storeu_ps(void* p, __mmask16 mask, __m512 v) {
  StandinMaskedStore(p, mask, &v);
}
inline void _mm512_mask_storeu_epi32(void* p, __mmask16 mask, __m512i v) {
  StandinMaskedStore(p, mask, &v);
}

// --- constants, casts, moves of lanes
// --------------------------------------------------------------

inline __m512 _mm512_setzero_ps() { return __m512{}; }
inline __m512i _mm512_setzero_si512() { return __m512i{}; }
inline __m512 _mm512_set1_ps(float x) { return x - __m512{}; }
inline __m512i _mm512_set1_epi32(int32_t x) { return (__m512i)(x - standin_ints{}); }
inline __m512i _mm512_set1_epi16(int16_t x) {
  return (__m512i)(static_cast<uint16_t>(x) - standin_words{});
}
inline __m128i _mm_set1_epi8(int8_t x) {
  typedef int8_t bytes __attribute__((vector_size(16)));
  return (__m128i)(x - bytes{});
}
template <typename... T>
inline __m512 _mm512_setr_ps(T... x) {
  return __m512{static_cast<float>(x)...};
}
template <typename... T>
inline __m512i _mm512_setr_epi32(T... x) {
  return (__m512i)standin_ints{x...};
}
inline float _mm512_cvtss_f32(__m512 v) { return v[0]; }
inline __m512 _mm512_castsi512_ps(__m512i v) { return (__m512)v; }
inline __m512i _mm512_castsi256_si512(__m256i v) { return __m512i{v[0], v[1], v[2], v[3]}; }
inline __m512i _mm512_inserti64x4(__m512i a, __m256i b, int half) {
  for (int i = 0; i < 4; ++i) a[4 * half + i] = b[i];
  return a;
}

template <typename T, typename V>
ORT_AIE_CALL V StandinPermute(const __m512i& index, const V& from) {
  constexpr int kLanes = 64 / sizeof(T);
  T indices[kLanes], lanes[kLanes], result[kLanes];
  __builtin_memcpy(indices, &index, 64);
  __builtin_memcpy(lanes, &from, 64);
  for (int i = 0; i < kLanes; ++i) result[i] = lanes[indices[i] & (kLanes - 1)];
  return StandinLoad<V>(result);
}
inline __m512i _mm512_permutexvar_epi8(const __m512i& index, const __m512i& from) {
  return StandinPermute<uint8_t>(index, from);
}
inline __m512i _mm512_permutexvar_epi16(const __m512i& index, const __m512i& from) {
  return StandinPermute<uint16_t>(index, from);
}
inline __m512 _mm512_permutexvar_ps(const __m512i& index, const __m512& from) {
  return StandinPermute<uint32_t>(index, from);
}
inline __m512 _mm512_permutex2var_ps(const __m512& a, const __m512i& order, const __m512& b) {
  int places[16];
  float from[32], result[16];
  __builtin_memcpy(places, &order, 64);
  __builtin_memcpy(from, &a, 64);
  __builtin_memcpy(from + 16, &b, 64);
  for (int i = 0; i < 16; ++i) result[i] = from[places[i] & 31];
  return StandinLoad<__m512>(result);
}
ORT_AIE_CALL __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int order) {
  __m512i v = {};
  for (int i = 0; i < 8; ++i) {
    const int place = (order >> i / 2 * 2 & 3) * 2 + i % 2;
    v[i] = i < 4 ? a[place] : b[place];
  }
  return v;
}
ORT_AIE_CALL __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) {
  return __m512i{a[0], b[0], a[2], b[2], a[4], b[4], a[6], b[6]};
}
ORT_AIE_CALL __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) {
  return __m512i{a[1], b[1], a[3], b[3], a[5], b[5], a[7], b[7]};
}
ORT_AIE_CALL __m512i StandinUnpack(__m512i x, __m512i y, int first) {
  const auto a = (standin_ints)x, b = (standin_ints)y;
  standin_ints v = {};
  for (int i = 0; i < 16; ++i) {
    const int place = i / 4 * 4 + first + i % 4 / 2;
    v[i] = i % 2 == 0 ? a[place] : b[place];
  }
  return (__m512i)v;
}
inline __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) { return StandinUnpack(a, b, 0); }
inline __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) { return StandinUnpack(a, b, 2); }

// --- integers ------------------------------------------------------------------------------------

inline __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  return (__m512i)((standin_bits)a + (standin_bits)b);
}
inline __m512i _mm512_sub_epi32(__m512i a, __m512i b) {
  return (__m512i)((standin_bits)a - (standin_bits)b);
}
inline __m512i _mm512_and_epi32(__m512i a, __m512i b) { return a & b; }
inline __m512i _mm512_slli_epi32(__m512i a, int n) { return (__m512i)((standin_bits)a << n); }
inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
inline __m512i _mm512_srli_epi16(__m512i a, int n) { return (__m512i)((standin_words)a >> n); }
inline __m512i _mm512_srli_epi32(__m512i a, int n) { return (__m512i)((standin_bits)a >> n); }
ORT_AIE_CALL __m512i _mm512_mask_srli_epi32(__m512i other, __mmask16 mask, __m512i a, int n) {
  auto v = (standin_bits)other;
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) v[i] = ((standin_bits)a)[i] >> n;
  }
  return (__m512i)v;
}
inline __m128i _mm_and_si128(__m128i a, __m128i b) { return a & b; }
inline __m128i _mm_or_si128(__m128i a, __m128i b) { return a | b; }
inline __m128i _mm_slli_epi16(__m128i a, int n) {
  typedef uint16_t words __attribute__((vector_size(16)));
  return (__m128i)((words)a << n);
}

// --- conversions ---------------------------------------------------------------------------------

template <typename From, typename To, typename V>
ORT_AIE_CALL V StandinWiden(const void* lanes) {
  V v = {};
  for (int64_t i = 0; i < (int64_t)(sizeof(V) / sizeof(To)); ++i) {
    const To wide = static_cast<const From*>(lanes)[i];
    __builtin_memcpy(reinterpret_cast<char*>(&v) + i * (int64_t)sizeof(To), &wide, sizeof(To));
  }
  return v;
}
inline __m128i _mm_cvtepu8_epi16(__m128i v) { return StandinWiden<uint8_t, uint16_t, __m128i>(&v); }
inline __m512i _mm512_cvtepu8_epi32(__m128i v) {
  return StandinWiden<uint8_t, uint32_t, __m512i>(&v);
}
inline __m512i _mm512_cvtepi8_epi32(__m128i v) {
  return StandinWiden<int8_t, int32_t, __m512i>(&v);
}
inline __m512i _mm512_cvtepu16_epi32(__m256i v) {
  return StandinWiden<uint16_t, uint32_t, __m512i>(&v);
}
inline __m512 _mm512_cvtepi32_ps(__m512i v) {
  return __builtin_convertvector((standin_ints)v, __m512);
}
ORT_AIE_CALL __m512 _mm512_maskz_cvtepi32_ps(__mmask16 mask, __m512i v) {
  __m512 x = _mm512_cvtepi32_ps(v);
  for (int i = 0; i < 16; ++i) {
    if (!(mask >> i & 1)) x[i] = 0;
  }
  return x;
}
ORT_AIE_CALL __m512 _mm512_cvtph_ps(__m256i v) {
  float x[16];
  kPortableKernels.float16_to_float(reinterpret_cast<const uint16_t*>(&v), 16, x);
  return _mm512_loadu_ps(x);
}

// All bits of lanes with x < limit, both below 2^31. GCC 12 makes a comparison of 64 bytes scalar.
inline standin_bits StandinBelow(standin_bits x, uint32_t limit) {
  return (standin_bits)((standin_ints)(x - limit) >> 31);
}
// Rounds to nearest even; denormals count as zero, whatever the mode of the CPU.
inline standin_bits StandinFlush(standin_bits x) {
  return x & ~(StandinBelow(x & 0x7fffffff, 0x00800000) & 0x7fffffff);
}
inline standin_bits StandinRound(standin_bits x) {
  const standin_bits rounded = (StandinFlush(x) + 0x7fff + (x >> 16 & 1)) >> 16;
  const standin_bits number = StandinBelow(x & 0x7fffffff, 0x7f800001);
  return (number & rounded) | (~number & (x >> 16 | 0x40));
}
ORT_AIE_CALL __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  const standin_bits a = StandinRound((standin_bits)low), b = StandinRound((standin_bits)high);
  standin_words v = {};
  for (int i = 0; i < 16; ++i) {
    v[i] = static_cast<uint16_t>(a[i]);
    v[16 + i] = static_cast<uint16_t>(b[i]);
  }
  return (__m512bh)v;
}

// --- floats --------------------------------------------------------------------------------------

inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  __m512 v = {};
  for (int i = 0; i < 16; ++i) v[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return v;
}

// a * b + c, rounded once. A result is tiny if it is below 2^-126 when rounded to 24 bits with an
// unlimited exponent. Just below 2^-126 the C library rounds to 23 bits, and returns 2^-126 where
// rounding to 24 bits gives less. In that case the operands are of a size that can be scaled.
inline __m512 StandinMultiplyAdd(__m512 a, __m512 b, __m512 c) {
  const auto sum = (standin_bits)_mm512_fmadd_ps(a, b, c);
  const auto scaled = (standin_bits)_mm512_fmadd_ps(a * 0x1p64f, b, c * 0x1p64f);
  const standin_bits tiny = StandinBelow((sum & 0x7fffffff) ^ 0x00800000, 1) &  // 2^-126
                            StandinBelow(scaled & 0x7fffffff, 0x20800000);      // 2^-62
  return (__m512)(StandinFlush(sum) & ~(tiny & 0x7fffffff));
}

// VDPBF16PS: the second halves of pairs first, then the first ones, each as one multiply-add.
ORT_AIE_CALL __m512 _mm512_dpbf16_ps(const __m512& sum, const __m512bh& x, const __m512bh& y) {
  const auto a = (standin_bits)x, b = (standin_bits)y;
  const auto low = [](standin_bits v) { return (__m512)StandinFlush(v << 16); };
  const auto high = [](standin_bits v) { return (__m512)StandinFlush(v & 0xffff0000); };
  const auto first = (__m512)StandinFlush((standin_bits)sum);
  return StandinMultiplyAdd(low(a), low(b), StandinMultiplyAdd(high(a), high(b), first));
}

ORT_AIE_CALL __m512 _mm512_max_ps(__m512 a, __m512 b) { return a > b ? a : b; }
ORT_AIE_CALL float _mm512_reduce_max_ps(__m512 v) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] = v[half + i] > v[i] ? v[half + i] : v[i];
  }
  return v[0];
}
ORT_AIE_CALL float _mm512_reduce_add_ps(__m512 v) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) v[i] += v[half + i];
  }
  return v[0];
}
// x - floor(x); 0 for an infinity.
ORT_AIE_CALL __m512 _mm512_reduce_ps(__m512 x, int) {
  for (int i = 0; i < 16; ++i) {
    x[i] = __builtin_isinf(x[i]) ? 0.0f : x[i] - __builtin_floorf(x[i]);
  }
  return x;
}
// x * 2^floor(power), rounded once. x is normal, and far from the largest floats.
ORT_AIE_CALL __m512 _mm512_scalef_ps(__m512 x, __m512 power) {
  for (int i = 0; i < 16; ++i) {
    if (__builtin_isnan(power[i])) {
      x[i] = power[i];
    } else {
      const float n = __builtin_floorf(power[i] < -300.0f  ? -300.0f
                                       : power[i] > 300.0f ? 300.0f
                                                           : power[i]);
      x[i] = __builtin_ldexpf(x[i], static_cast<int>(n));
    }
  }
  return x;
}
