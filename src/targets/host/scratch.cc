#include "targets/host/scratch.h"

#include <pthread.h>

#include <cstdlib>
#include <memory>

namespace ort_aie::host {
namespace {

// The memory of one thread. It is not thread_local: the dynamic loader allocates a thread's copy at
// first use, and ends the process if it has no memory for it.
class Key {
 public:
  Key()
      : exists_(pthread_key_create(
                    &key_, [](void* memory) { delete static_cast<ThreadMemory*>(memory); }) == 0) {}

  ThreadMemory& OfThisThread() const {
    if (!exists_) throw std::bad_alloc();
    if (void* memory = pthread_getspecific(key_)) return *static_cast<ThreadMemory*>(memory);
    auto memory = std::make_unique<ThreadMemory>();
    if (pthread_setspecific(key_, memory.get()) != 0) throw std::bad_alloc();
    return *memory.release();
  }

 private:
  pthread_key_t key_;
  const bool exists_;
};

// Never deleted, because threads may outlive the statics of the process.
const Key& TheKey() {
  static const Key& key = *new Key();
  return key;
}

}  // namespace

ThreadMemory& MemoryOfThisThread() { return TheKey().OfThisThread(); }

void* ScratchBytes(Purpose purpose, size_t bytes) {
  ThreadMemory::Buffer& buffer = MemoryOfThisThread().buffers[static_cast<size_t>(purpose)];
  if (buffer.size < bytes) {
    const auto size = RoundUp(bytes, 4096).As<size_t>("a buffer");
    buffer.size = 0;
    buffer.memory.reset(std::aligned_alloc(64, size));
    if (buffer.memory == nullptr) throw std::bad_alloc();
    buffer.size = size;
  }
  return buffer.memory.get();
}

}  // namespace ort_aie::host
