// Streams that have been built, kept and patched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "npu/stream.h"

namespace ort_aie::npu {

// Half of the 64 MB of instructions that a context has.
constexpr size_t kKeptWords = size_t{8} << 20;

// Keeps the streams of the plans that came last. A plan that gives the words of a kept stream but
// for lengths, addresses and parameters has these patched in place, so that a buffer that holds the
// stream needs only the changed words. Not for several threads at once.
class StreamCache {
 public:
  enum class Outcome { kSame, kPatched, kEncoded };

  struct Lookup {
    const Stream& stream;  // until the next Get
    uint64_t id;           // of the kept stream: the same as long as it is only patched
    Outcome outcome;
    std::vector<WordRange> changed;  // when patched, ascending
  };

  // Keeps so many streams, and of so many words together.
  explicit StreamCache(Manifest manifest, size_t capacity = 64, size_t most_words = kKeptWords);
  StreamCache(const StreamCache&) = delete;

  const Manifest& manifest() const { return manifest_; }

  // Raises as BuildStream does, and then changes nothing.
  Lookup Get(const Plan& plan);

  // Streams that are kept.
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    uint64_t id;
    Plan plan;
    Stream stream;
    size_t words;
  };

  void ToFront(std::list<Entry>::iterator entry) {
    entries_.splice(entries_.begin(), entries_, entry);
  }

  Manifest manifest_;
  Interpreter interpreter_{manifest_};
  size_t capacity_, most_words_;
  size_t words_ = 0;  // of all entries
  uint64_t next_id_ = 0;
  std::list<Entry> entries_;  // the one used last comes first
};

}  // namespace ort_aie::npu
