#include "targets/npu/row_marks.h"

#include <array>
#include <cstring>
#include <random>

namespace ort_aie::npu_target {
namespace {

// What one multiplication of a vector takes: four words, of which it adds keys to each and
// multiplies the even ones by the odd ones.
using Words = uint32_t __attribute__((vector_size(16)));
using Sums = uint64_t __attribute__((vector_size(16)));
constexpr int64_t kBytes = sizeof(Words);
// The second sum's keys are the first's, shifted by one vector: a Toeplitz construction, whose
// sums are as good as with keys of their own.
constexpr size_t kKeys = kMostMarkedBytes / kBytes + 1;

const Words* Keys() {
  static const auto keys = [] {
    std::random_device random;
    std::array<Words, kKeys> all;
    for (Words& words : all) {
      for (int i = 0; i < 4; ++i) words[i] = random();
    }
    return all;
  }();
  return keys.data();
}

Sums Products(Words x, Words key) {
  const Words sum = x + key;
  const auto pairs = reinterpret_cast<Sums>(sum);
  return (pairs & 0xffffffff) * (pairs >> 32);
}

}  // namespace

RowMark MarkOf(const void* row, int64_t bytes) {
  static const Words* const keys = Keys();
  const auto* x = static_cast<const uint8_t*>(row);
  Sums first = {}, second = {};
  const Words* key = keys;
  const auto add = [&](Words words) {
    first += Products(words, key[0]);
    second += Products(words, key[1]);
    ++key;
  };
  for (; bytes >= kBytes; bytes -= kBytes, x += kBytes) {
    Words words;
    std::memcpy(&words, x, kBytes);
    add(words);
  }
  if (bytes > 0) {
    Words words = {};
    std::memcpy(&words, x, static_cast<size_t>(bytes));
    add(words);
  }
  return {{first[0] + first[1], second[0] + second[1]}};
}

}  // namespace ort_aie::npu_target
