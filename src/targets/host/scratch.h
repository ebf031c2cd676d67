// Working memory of the host target: one growing buffer per thread and purpose, so that a token
// allocates nothing once the shapes have been seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "ops/size.h"

namespace ort_aie::host {

// What a buffer holds. Two live at once on one thread never share a purpose.
enum class Purpose {
  kActivations,  // shared by the tasks of a step
  kActivationScales,
  kActivationSums,
  kActivationCodes,
  kNormWeight,
  kCodeSums,
  kLookupRow,  // with its steps and sums
  kLookupTables,
  kQueries,
  kNewRows,
  kPartials,
  kPanel,  // of one task
  kPanelScales,
  kUpPanel,
  kUpPanelScales,
  kTile,
  kKeys,
  kValues,
  kScores,
  kRow,
  kSkip,
  kPurposeCount
};

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
