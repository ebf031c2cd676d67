#include "targets/npu/weights.h"

#include <algorithm>
#include <cstring>

#include "q4nx/layout.h"
#include "q4nx/pack.h"
#include "targets/npu/plan_memory.h"
#include "targets/npu/schedule/reasons.h"

namespace ort_aie::npu_target {
namespace {

int64_t BytesOf(const Matrix& matrix) {
  return q4nx::BytesOfBlocks(matrix.n, matrix.k, matrix.form);
}
// The form of a matrix on the device.
WeightForm FormThere(const Matrix& matrix, const PlanMemory* memory) {
  return CanBeQ4nx(matrix.form) ? DeviceForm(memory) : matrix.form;
}
int64_t DeviceBytes(const Matrix& matrix, const WeightForm& form) {
  return q4nx::BytesOfBlocks(DeviceRows(matrix.n), matrix.k, form);
}
void Copy(const Matrix& matrix, const WeightForm& form, uint8_t* to) {
  std::memset(to, 0, static_cast<size_t>(DeviceBytes(matrix, form)));
  if (form == matrix.form) {
    std::memcpy(to, matrix.blocks, static_cast<size_t>(BytesOf(matrix)));
  } else {
    q4nx::Widen(matrix.blocks, matrix.form, q4nx::RowBlocks(matrix.n) * q4nx::ColBlocks(matrix.k),
                to, form);
  }
}
void CountWidened(Engine& engine, const Matrix& matrix, const PlanMemory* memory) {
  const std::string why =
      WhyWidened(matrix.form, DeviceForm(memory), memory != nullptr, engine.overlays());
  if (why.empty()) return;
  engine.Count([&](ExecutorCounters& counters) { ++counters.widened[why]; });
}

}  // namespace

WeightForm DeviceForm(const PlanMemory* memory) {
  return memory == nullptr ? q4nx::kShipping : memory->form();
}

bool IsReadInPlace(const Matrix& matrix, const PlanMemory* memory) {
  const WeightForm form = FormThere(matrix, memory);
  return form == matrix.form && DeviceBytes(matrix, form) == BytesOf(matrix);
}

std::vector<DeviceMemory> PinWeights(Engine& engine, const PlanMemory* plan,
                                     std::span<const Matrix> matrices) {
  std::vector<DeviceMemory> memory(matrices.size());
  std::vector<size_t> in_place, copied;
  for (size_t i = 0; i < matrices.size(); ++i) {
    (IsReadInPlace(matrices[i], plan) ? in_place : copied).push_back(i);
    CountWidened(engine, matrices[i], plan);
  }
  if (!in_place.empty()) {
    std::vector<HostMemory> ranges;
    for (const size_t i : in_place) {
      ranges.push_back({matrices[i].blocks, static_cast<size_t>(BytesOf(matrices[i]))});
    }
    const std::vector<DeviceMemory> pinned = engine.device().Pin(ranges);
    for (size_t i = 0; i < in_place.size(); ++i) memory[in_place[i]] = pinned[i];
  }
  for (size_t first = 0; first < copied.size();) {
    size_t end = first, bytes = 0;
    for (; end < copied.size(); ++end) {
      Matrix const& matrix = matrices[copied[end]];
      const auto more = static_cast<size_t>(DeviceBytes(matrix, FormThere(matrix, plan)));
      if (end > first && bytes + more > kMaxBufferBytes) break;
      memory[copied[end]].offset = static_cast<int64_t>(bytes);
      bytes += more;
    }
    const TraceSpan traced("host", "copy weights");
    const std::shared_ptr<Buffer> buffer = engine.device().Allocate(bytes);
    for (; first < end; ++first) {
      DeviceMemory& at = memory[copied[first]];
      at.buffer = buffer;
      Copy(matrices[copied[first]], FormThere(matrices[copied[first]], plan), at.host());
    }
    buffer->ToDevice(0, bytes);
  }
  return memory;
}

WeightPlaces WeightsOf(Engine& engine, const PlanMemory* memory, const MatMulStep& step) {
  const bool gated = step.up_weights != nullptr;
  if (memory != nullptr) {
    return {memory->Weights(step.weights),
            gated ? memory->Weights(step.up_weights) : DeviceMemory()};
  }
  const auto pin = [&] {
    const Matrix matrices[] = {{step.weights, step.n, step.k, step.form},
                               {step.up_weights, step.n, step.k, step.form}};
    std::vector<DeviceMemory> pinned =
        PinWeights(engine, nullptr, std::span(matrices).first(gated ? 2 : 1));
    return WeightPlaces{pinned.front(), gated ? pinned.back() : DeviceMemory()};
  };
  if (step.kept == nullptr) return pin();
  const std::lock_guard lock(step.kept->mutex);
  auto kept = std::static_pointer_cast<PinnedWeights>(step.kept->object);
  const uint64_t generation = engine.generation();
  if (kept == nullptr || kept->generation != generation) {
    step.kept->object = nullptr;  // free it before the next is made
    kept = nullptr;
    kept = std::make_shared<PinnedWeights>(generation, pin());
    step.kept->object = kept;
  }
  return kept->places;
}

}  // namespace ort_aie::npu_target
