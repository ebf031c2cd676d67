// Working memory of the host target: one growing buffer per thread and purpose, so that a token
// allocates nothing once its shapes have occurred.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "base/aligned.h"
#include "base/size.h"
#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {

// The use of a buffer. Two buffers that live at once on one thread never share a purpose.
enum class Purpose {
  kActivations,  // shared by the tasks of a step
  kActivationScales,
  kActivationSums,
  kActivationCodes,
  kNormWeight,
  kRouting,  // of a step of experts
  kRouterLogits,
  kRouterWeights,
  kExpertRows,    // rows in the order of experts
  kExpertHidden,  // results of the experts' first projections
  kExpertUp,      // those of `up`, if it is a projection of its own
  kExpertResults,
  kOperand,  // shared by all rows or all elements
  kCodeSums,
  kLookupRow,  // with its steps and sums
  kLookupTables,
  kQueries,
  kNewRows,
  kPartials,
  kPanel,  // for one task
  kPanelScales,
  kUpPanel,
  kUpPanelScales,
  kTile,
  kBias,
  kKeys,
  kValues,
  kScores,
  kRow,
  kSkip,
  kGate,
  kPurposeCount
};

// The working memory of a thread, until the thread ends.
struct ThreadMemory {
  struct Buffer {
    AlignedMemory memory;
    size_t size = 0;
  };
  Buffer buffers[static_cast<size_t>(Purpose::kPurposeCount)];

  // Describes the lookup tables in the buffers (lookup_tables.cc).
  struct Tables {
    const Kernels* kernels = nullptr;
    bool bf16 = false;
    int64_t in_features = 0;
    int64_t count = 0;
  } tables;
};
// Throws std::bad_alloc.
ThreadMemory& MemoryOfThisThread();

// At least `bytes` bytes, 64-byte aligned, valid until the thread asks for the same purpose again.
// Throws std::bad_alloc.
void* ScratchBytes(Purpose purpose, size_t bytes);

template <typename T>
T* Scratch(Purpose purpose, int64_t count) {
  const Size bytes = Size(count) * sizeof(T);
  if (!bytes.InRange()) throw std::bad_alloc();
  return static_cast<T*>(ScratchBytes(purpose, bytes.As<size_t>("a buffer")));
}

}  // namespace ort_aie::host
