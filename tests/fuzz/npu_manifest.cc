// Manifests of designs and their sequences: parsed, interpreted for a shape, and encoded.
//
// An input is a manifest's JSON; after a line "--" come whole numbers, the values of the sequences'
// parameters and the places of their arguments, in order. Missing ones are 64 or 0.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json_mutator.h"
#include "npu/manifest.h"
#include "npu/stream_cache.h"

namespace {

using namespace ort_aie;
using namespace ort_aie::npu;

constexpr std::string_view kEndOfJson = "\n--\n";

class Numbers {
 public:
  explicit Numbers(std::string_view text) : words_(std::string(text)) {}

  int64_t Next(int64_t fallback) {
    int64_t value = 0;
    return words_ >> value ? value : fallback;
  }

 private:
  std::istringstream words_;
};

Invocations InvocationsFor(const Manifest& manifest, Numbers& numbers) {
  Invocations invocations;
  for (const Sequence& sequence : manifest.sequences) {
    Invocation invocation{sequence.name, {}, {}};
    for (const std::string& name : sequence.parameters) {
      invocation.parameters[name] = numbers.Next(64);
    }
    int buffer = 0;
    for (const Argument& argument : sequence.arguments) {
      const int64_t offset = numbers.Next(0);
      invocation.arguments[argument.name] = {buffer++, offset};
    }
    invocations.push_back(std::move(invocation));
  }
  return invocations;
}

// The operations in the words of a run: each one, or its kind, says how many words it has.
size_t CountOperations(const std::vector<uint32_t>& words) {
  size_t count = 0;
  for (size_t at = 4; at < words.size(); ++count) {
    const uint32_t* op = &words[at];
    const size_t left = words.size() - at;
    size_t size_word = 1;           // TCT, DDR_PATCH
    if (op[0] == 0) size_word = 5;  // WRITE
    if (op[0] == 1) size_word = 3;  // BLOCKWRITE
    if (op[0] == 3) size_word = 6;  // MASKWRITE
    if (size_word >= left || op[size_word] % 4 != 0) std::abort();
    const size_t size = op[size_word] / 4;
    if (size <= size_word || size > left) std::abort();
    at += size;
  }
  return count;
}

// Checks that hold for every stream that the encoder returns.
void CheckStream(const InstructionStream& stream) {
  for (const Run& run : stream.runs) {
    if (run.words.size() < 4 || run.words[3] != run.words.size() * 4) std::abort();
    if (run.words[2] != run.sources.size()) std::abort();
    if (run.words[2] != CountOperations(run.words)) std::abort();
    if (run.buffers.size() > kRunBuffers) std::abort();
    if (!(run.predicted_seconds <= kMaxRunSeconds)) std::abort();
    for (const uint32_t word : run.variable) {
      if (word >= run.words.size()) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.find(kEndOfJson);
  Numbers numbers(end == std::string_view::npos ? "" : text.substr(end + kEndOfJson.size()));
  try {
    StreamCache cache(ParseManifest(text.substr(0, end)),
                      std::make_shared<StreamMemory>(size_t{1} << 20), 2);
    const Invocations first = InvocationsFor(cache.manifest(), numbers);
    CheckStream(cache.Get(first).stream);
    const Invocations second = InvocationsFor(cache.manifest(), numbers);
    CheckStream(cache.Get(second).stream);
  } catch (const Error&) {
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return ort_aie::fuzz::MutateJson(data, size, most, seed, kEndOfJson);
}
