// Streams that have been built, kept and patched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "npu/stream.h"

namespace ort_aie::npu {

class StreamCache;

// What streams may take of the device's memory for instructions. A process has one heap of 64 MB
// for all of its contexts (xdna-driver: amdxdna_gem.c, AIE2_DEVM_SIZE; shim/kmq/pcidev.cpp, which
// lets it grow to 512 MB where the driver does), and their configurations and lists of commands lie
// there too (shim/kmq/hwctx.cpp, aie2_ctx.c). mlir-aie's xclbins call 48 MB of it the bank of
// instructions (SRAM, 0xC000 KB at 0x4000000, in its aiecc).
inline constexpr size_t kInstructionBytes = size_t{48} << 20;
// A run's words lie in a buffer of their own, and the heap is given out in such units (xdna-driver:
// dev_mem_buf_shift in npu1_regs.c and npu4_family.h).
inline constexpr size_t kStreamUnit = 32 << 10;

// What a run's words, and all of a stream's, take of that memory, in bytes.
size_t RunBytes(size_t words);
size_t StreamBytes(const Stream& stream);

// What the owner of a cache keeps with a stream, such as the buffers that hold it. It goes when the
// stream goes.
class StreamCompanion {
 public:
  virtual ~StreamCompanion() = default;
};

// The streams that several caches keep of the device's memory for instructions. Not for several
// threads at once, whatever the cache.
class StreamMemory {
 public:
  explicit StreamMemory(size_t bytes = kInstructionBytes) : bytes_(bytes) {}
  StreamMemory(const StreamMemory&) = delete;

  size_t bytes() const { return bytes_; }
  size_t used() const { return used_; }
  int64_t dropped() const { return dropped_; }  // streams that made room for others

  // Drops the stream that was used longest ago, in whichever cache. The one used last stays: false
  // where there is no other.
  bool DropOldest();

 private:
  friend class StreamCache;
  struct Entry {
    const StreamCache* owner;
    uint64_t id;
    Plan plan;
    Stream stream;
    size_t bytes;
    std::unique_ptr<StreamCompanion> companion;
  };
  using Place = std::list<Entry>::iterator;

  void Drop(Place entry);
  void MakeRoom(Place entry);  // as Drop, and counted

  const size_t bytes_;
  size_t used_ = 0;
  int64_t dropped_ = 0;
  uint64_t next_id_ = 0;
  std::list<Entry> entries_;  // the one used last comes first
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
    std::vector<WordRange> changed;               // when patched, ascending
    std::unique_ptr<StreamCompanion>& companion;  // null until somebody puts one there
  };

  // Keeps so many streams, in a memory that other caches may share.
  StreamCache(Manifest manifest, std::shared_ptr<StreamMemory> memory, size_t capacity = 64);
  ~StreamCache();
  StreamCache(const StreamCache&) = delete;

  const Manifest& manifest() const { return manifest_; }
  StreamMemory& memory() const { return *memory_; }

  // Raises as BuildStream does, and for a stream that is larger than the memory; then nothing has
  // changed.
  Lookup Get(const Plan& plan);

 private:
  Lookup Found(StreamMemory::Place entry, Outcome outcome, std::vector<WordRange> changed) const;

  Manifest manifest_;
  Interpreter interpreter_{manifest_};
  const std::shared_ptr<StreamMemory> memory_;
  const size_t capacity_;
};

}  // namespace ort_aie::npu
