// The instruction words of a token: those of one length of context, and what they gain with each
// position more. mlir-air gives words of two neighbouring lengths, from which `ort-aie
// package-overlay` takes both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ort_aie::fused_decode {

struct WordSlope {
  size_t word;
  int64_t slope;  // modulo 2^32
};

struct WordTemplate {
  std::vector<uint32_t> words;    // of base_length
  std::vector<WordSlope> slopes;  // ascending; other words are those of any length
  int64_t base_length = 0;        // of the context, the token itself included
  int64_t positions = 0;          // the longest context
};

struct WordSpan {
  size_t begin = 0, end = 0;  // words [begin, end)
};

// All that a length changes lies there.
WordSpan VariableWords(const WordTemplate& words);

// Brings `words`, a copy of the template's, to a context of `length`. Throws Error unless that is 1
// to `positions`.
void SetLength(const WordTemplate& from, int64_t length, std::span<uint32_t> words);

}  // namespace ort_aie::fused_decode
