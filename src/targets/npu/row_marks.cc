#include "targets/npu/row_marks.h"

#include <array>
#include <cstring>
#include <random>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ort_aie::npu_target {
namespace {

// A row is a number of vectors, the last one padded with zeros. A vector is pairs of words; a key
// is added to each word, and the two are multiplied to 64 bits. The second sum uses the same keys,
// shifted by a vector (Toeplitz). So for the last pair in which two rows differ, it has a key that
// is not used elsewhere in either sum.
constexpr int64_t kVector = 64;  // bytes
constexpr size_t kWords = kVector / sizeof(uint32_t);
constexpr size_t kKeys = kMostMarkedBytes / kVector + 1;  // vectors of them

struct alignas(kVector) Keys {
  Keys() {
    std::random_device random;
    for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  }
  std::array<uint32_t, kKeys * kWords> words;
};

// The two sums of `vectors` vectors at `row`.
using Sum = RowMark (*)(const uint8_t* row, int64_t vectors, const uint32_t* keys);

RowMark SumPortable(const uint8_t* row, int64_t vectors, const uint32_t* keys) {
  RowMark mark;
  for (int64_t i = 0; i < vectors; ++i) {
    uint32_t words[kWords];
    std::memcpy(words, row + i * kVector, kVector);
    for (size_t shift = 0; shift < 2; ++shift) {
      const uint32_t* key = keys + (static_cast<size_t>(i) + shift) * kWords;
      for (size_t w = 0; w < kWords; w += 2) {
        mark.sums[shift] += uint64_t{words[w] + key[w]} * uint64_t{words[w + 1] + key[w + 1]};
      }
    }
  }
  return mark;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) RowMark SumAvx2(const uint8_t* row, int64_t vectors,
                                                const uint32_t* keys) {
  __m256i sums[2] = {};
  for (int64_t i = 0; i < 2 * vectors; ++i) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row) + i);
    for (int64_t shift = 0; shift < 2; ++shift) {
      const auto* key = reinterpret_cast<const __m256i*>(keys) + i + 2 * shift;
      const __m256i sum = _mm256_add_epi32(x, _mm256_load_si256(key));
      sums[shift] =
          _mm256_add_epi64(sums[shift], _mm256_mul_epu32(sum, _mm256_srli_epi64(sum, 32)));
    }
  }
  RowMark mark;
  for (int shift = 0; shift < 2; ++shift) {
    const __m128i half = _mm_add_epi64(_mm256_castsi256_si128(sums[shift]),
                                       _mm256_extracti128_si256(sums[shift], 1));
    mark.sums[shift] = static_cast<uint64_t>(_mm_cvtsi128_si64(half)) +
                       static_cast<uint64_t>(_mm_extract_epi64(half, 1));
  }
  return mark;
}

Sum Fastest() { return __builtin_cpu_supports("avx2") ? SumAvx2 : SumPortable; }
#else
Sum Fastest() { return SumPortable; }
#endif

}  // namespace

RowMark MarkOf(const void* row, int64_t bytes) {
  static const Keys keys;
  static const Sum sum = Fastest();
  const auto* x = static_cast<const uint8_t*>(row);
  if (bytes % kVector == 0) return sum(x, bytes / kVector, keys.words.data());
  uint8_t filled[kMostMarkedBytes] = {};
  std::memcpy(filled, x, static_cast<size_t>(bytes));
  return sum(filled, (bytes + kVector - 1) / kVector, keys.words.data());
}

}  // namespace ort_aie::npu_target
