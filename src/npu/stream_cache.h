// A cache of streams, which it can patch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "npu/stream.h"

namespace ort_aie::npu {

class StreamCache;

// How much of the device's memory for instructions streams may take. A process has one heap of 64
// MB for all of its contexts (xdna-driver: amdxdna_gem.c, AIE2_DEVM_SIZE; shim/kmq/pcidev.cpp,
// which lets it grow to 512 MB if the driver supports that). The contexts' configurations and lists
// of commands are in it too (shim/kmq/hwctx.cpp, aie2_ctx.c). mlir-aie's xclbins call 48 MB of it
// the bank of instructions (SRAM, 0xC000 KB at 0x4000000, in its aiecc).
inline constexpr size_t kInstructionBytes = size_t{48} << 20;
// Each run's words are in a buffer of their own, and the heap allocates in such units (xdna-driver:
// dev_mem_buf_shift in npu1_regs.c and npu4_family.h).
inline constexpr size_t kStreamUnit = 32 << 10;

// How much of that memory the words of a run, and all words of a stream, take, in bytes.
size_t RunBytes(size_t words);
size_t StreamBytes(const InstructionStream& stream);

// What the owner of a cache keeps with a stream, such as the buffers that hold it. It is destroyed
// with the stream.
class StreamCompanion {
 public:
  virtual ~StreamCompanion() = default;
};

// There is no room for a stream beside those that are held.
class NoRoomForStream : public Error {
 public:
  explicit NoRoomForStream(const std::string& message) : Error(ErrorCode::kRuntime, message) {}
};

// The streams that several caches keep in the device's memory for instructions. Not thread-safe,
// even across caches.
class StreamMemory {
 public:
  explicit StreamMemory(size_t bytes = kInstructionBytes) : bytes_(bytes) {}
  StreamMemory(const StreamMemory&) = delete;

  size_t bytes() const { return bytes_; }
  size_t used() const { return used_; }
  int64_t dropped() const { return dropped_; }  // streams dropped to make room for others

  // Drops the stream used longest ago, in whichever cache. Never drops the one used last, nor those
  // that are held: returns false if there is no other.
  bool DropOldest();

  // The stream used last stays as it is: it is neither dropped nor patched until it is released,
  // and the same plan gets another one. Returns its id.
  uint64_t HoldLast();
  void Release(uint64_t id);

 private:
  friend class StreamCache;
  struct Entry {
    const StreamCache* owner;
    uint64_t id;
    Invocations plan;
    InstructionStream stream;
    size_t bytes;
    std::unique_ptr<StreamCompanion> companion;
    bool held = false;
  };
  using Place = std::list<Entry>::iterator;

  void Drop(Place entry);
  // Drops the oldest stream that is not held, of one cache or of any, and counts it. Returns false
  // if there is none.
  bool MakeRoom(const StreamCache* of = nullptr);

  const size_t bytes_;
  size_t used_ = 0;
  int64_t dropped_ = 0;
  uint64_t next_id_ = 0;
  std::list<Entry> entries_;  // most recently used first
};

// Keeps the streams of the latest plans. If the words of a plan differ from those of a kept stream
// only in lengths, addresses and parameters, the stream is patched in place, and a buffer that
// holds it needs only the changed words. Not thread-safe.
class StreamCache {
 public:
  enum class Outcome { kSame, kPatched, kEncoded };

  struct Lookup {
    const InstructionStream& stream;  // valid until the next Get, or while it is held
    uint64_t id;                      // of the kept stream; patching does not change it
    Outcome outcome;
    std::vector<WordRange> changed;               // when patched, ascending
    std::unique_ptr<StreamCompanion>& companion;  // null until the owner sets it
  };

  // Keeps at most `capacity` streams, in a memory that other caches may share.
  StreamCache(Manifest manifest, std::shared_ptr<StreamMemory> memory, size_t capacity = 64);
  ~StreamCache();
  StreamCache(const StreamCache&) = delete;

  const Manifest& manifest() const { return manifest_; }
  StreamMemory& memory() const { return *memory_; }

  // Throws as BuildStream does, and for a stream that is larger than the memory; then nothing has
  // changed. Throws NoRoomForStream.
  Lookup Get(const Invocations& plan);

 private:
  Lookup Found(StreamMemory::Place entry, Outcome outcome, std::vector<WordRange> changed) const;

  Manifest manifest_;
  Interpreter interpreter_{manifest_};
  const std::shared_ptr<StreamMemory> memory_;
  const size_t capacity_;
};

}  // namespace ort_aie::npu
