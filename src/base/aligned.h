// Memory at an alignment that malloc does not promise.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace ort_aie {

struct AlignedDelete {
  size_t alignment = 1;
  void operator()(void* memory) const { ::operator delete(memory, std::align_val_t(alignment)); }
};
using AlignedMemory = std::unique_ptr<void, AlignedDelete>;

// `alignment` is a power of two. Throws std::bad_alloc.
inline AlignedMemory AllocateAligned(size_t bytes, size_t alignment) {
  return {::operator new(bytes, std::align_val_t(alignment)), {alignment}};
}

}  // namespace ort_aie
