#include "targets/host/lookup_tables.h"

#include <cstring>

#include "targets/host/scratch.h"

namespace ort_aie::host {
LookupTables TablesOf(const Kernels& kernels, bool bf16, const float* x, int64_t in_features) {
  const int64_t groups = in_features / 32;
  const LookupMatvec& matvec = bf16 ? kernels.lookup->bf16 : kernels.lookup->int8;
  ThreadMemory::Tables& made = MemoryOfThisThread().tables;
  // When buffers grow, or fail to, they lose their content, which was for another number of
  // in-features.
  if (made.in_features != in_features) made.kernels = nullptr;
  auto* tables = Scratch<uint8_t>(Purpose::kLookupTables, in_features / 4 * kMaxTableBytes);
  float* row = Scratch<float>(Purpose::kLookupRow, in_features + 2 * groups);
  float *steps = row + in_features, *sums = steps + groups;
  const auto bytes = static_cast<size_t>(in_features) * sizeof(float);
  if (made.kernels == &kernels && made.bf16 == bf16 && std::memcmp(row, x, bytes) == 0) {
    return {tables, steps, sums};
  }
  made.kernels = nullptr;  // until they are complete
  std::memcpy(row, x, bytes);
  if (bf16) {
    float* rounded = Scratch<float>(Purpose::kActivations, in_features);
    auto* halves = Scratch<uint16_t>(Purpose::kActivationCodes, in_features);
    kernels.float_to_bfloat16(x, in_features, halves);
    kernels.bfloat16_to_float(halves, in_features, rounded);
    x = rounded;
  }
  matvec.make_tables(x, groups, tables, steps, sums);
  made = {&kernels, bf16, in_features, made.count + 1};
  return {tables, steps, sums};
}

int64_t LookupTablesMade() { return MemoryOfThisThread().tables.count; }

}  // namespace ort_aie::host
