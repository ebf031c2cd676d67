// Streams that have been built, kept and patched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "npu/stream.h"

namespace ort_aie::npu {

struct WordRange {
  size_t run;
  size_t begin;  // words [begin, end)
  size_t end;
};

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

  explicit StreamCache(Manifest manifest, size_t capacity = 64);

  const Manifest& manifest() const { return manifest_; }

  // Raises as BuildStream does, and then changes nothing.
  Lookup Get(const Plan& plan);

 private:
  struct Entry {
    uint64_t id;
    Plan plan;
    Stream stream;
  };

  Manifest manifest_;
  size_t capacity_;
  uint64_t next_id_ = 0;
  std::list<Entry> entries_;  // the one used last comes first
};

}  // namespace ort_aie::npu
