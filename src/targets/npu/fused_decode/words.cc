#include "targets/npu/fused_decode/words.h"

#include "base/error.h"

namespace ort_aie::fused_decode {

WordSpan VariableWords(const WordTemplate& words) {
  if (words.slopes.empty()) return {};
  return {words.slopes.front().word, words.slopes.back().word + 1};
}

void SetLength(const WordTemplate& from, int64_t length, std::span<uint32_t> words) {
  Require(length >= 1 && length <= from.positions, "the overlay supports contexts of 1 to ",
          from.positions, " tokens, got ", length);
  for (const WordSlope& at : from.slopes) {
    const auto steps = static_cast<uint64_t>(length - from.base_length);
    words[at.word] =
        static_cast<uint32_t>(from.words[at.word] + steps * static_cast<uint64_t>(at.slope));
  }
}

}  // namespace ort_aie::fused_decode
