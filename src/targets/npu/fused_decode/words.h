// The instruction words of a token: the words for one length of the context, and how much they
// increase with each further position. mlir-air gives the words of two neighbouring lengths;
// `ort-aie package-overlay` computes both from these.
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
  std::vector<uint32_t> words;    // for base_length
  std::vector<WordSlope> slopes;  // ascending; all other words are the same for any length
  int64_t base_length = 0;        // of the context, including the token itself
  int64_t positions = 0;          // the longest context
};

struct WordSpan {
  size_t begin = 0, end = 0;  // words [begin, end)
};

// All words that the length changes are in this span.
WordSpan VariableWords(const WordTemplate& words);

// Changes `words`, a copy of the template's, to a context of `length`. Throws Error unless the
// length is 1 to `positions`.
void SetLength(const WordTemplate& from, int64_t length, std::span<uint32_t> words);

}  // namespace ort_aie::fused_decode
