#include "targets/host/scratch.h"

#include <memory>

#include "base/platform.h"

namespace ort_aie::host {

// It is not thread_local: the dynamic loader allocates a thread's copy at first use, and ends the
// process if it has no memory for it.
ThreadMemory& MemoryOfThisThread() {
  // Never deleted, because threads may outlive the statics of the process.
  static const platform::ThreadSlot& slot =
      *new platform::ThreadSlot([](void* memory) { delete static_cast<ThreadMemory*>(memory); });
  if (void* memory = slot.Get()) return *static_cast<ThreadMemory*>(memory);
  auto memory = std::make_unique<ThreadMemory>();
  if (!slot.Set(memory.get())) throw std::bad_alloc();
  return *memory.release();
}

void* ScratchBytes(Purpose purpose, size_t bytes) {
  ThreadMemory::Buffer& buffer = MemoryOfThisThread().buffers[static_cast<size_t>(purpose)];
  if (buffer.size < bytes) {
    const auto size = RoundUp(bytes, 4096).As<size_t>("a buffer");
    buffer.size = 0;
    buffer.memory.reset();
    buffer.memory = platform::AllocateInLargePages(size, 64);
    buffer.size = size;
  }
  return buffer.memory.get();
}

}  // namespace ort_aie::host
