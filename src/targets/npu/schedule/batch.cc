#include "targets/npu/schedule/batch.h"

#include <algorithm>

#include "q4nx/layout.h"
#include "targets/host/kernels/kernels.h"
#include "targets/host/work.h"
#include "targets/npu/conversions.h"
#include "targets/npu/schedule/designs.h"

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kStoredTogether = 4096;  // elements stored by one host task

}  // namespace

void Batch::Invoke(Design design, npu::Invocation invocation) {
  const auto now = [&]() -> DesignPart* {
    return submissions_.empty() ? nullptr : &submissions_.back().back();
  };
  if (now() == nullptr || now()->design != design) {
    const bool together =
        now() != nullptr && one_context_ != nullptr && one_context_(now()->design, design);
    if (!together) submissions_.emplace_back();
    submissions_.back().push_back({design, {}});
  }
  now()->invocations.push_back(std::move(invocation));
}

npu::BufferView Batch::Input(int64_t elements, Fill fill) {
  const npu::BufferView view = memory.Input(elements);
  if (fill) {
    preparations_.emplace_back([offset = view.offset, fill = std::move(fill)](uint8_t* inputs) {
      fill(reinterpret_cast<uint16_t*>(inputs + offset));
    });
  }
  return view;
}

npu::BufferView Batch::SharedInput(const TableKey& key, int64_t elements, Fill fill) {
  const auto known = shared_.find(key);
  if (known != shared_.end()) return known->second;
  return shared_[key] = Input(elements, std::move(fill));
}

npu::BufferView Batch::ZerosAfter(int purpose, int64_t used, int64_t elements) {
  const auto [known, added] = zeros_after_.try_emplace({purpose, used, elements});
  if (added) known->second = memory.ZerosAfter(used, elements);
  return known->second;
}

void Batch::Prepare(std::function<void()> execute) {
  preparations_.emplace_back([execute = std::move(execute)](uint8_t*) { execute(); });
}

void Batch::Before(const Step& step, std::function<void()> execute) {
  tensors.Precedes(step);
  Prepare(std::move(execute));
}

npu::BufferView Batch::Output(void* tensor, int64_t elements, DataType type, int64_t least) {
  // A tensor that is longer than any row of the device is never an input there.
  const bool zeros = elements % q4nx::kBlockCols != 0 && elements <= kMatvecMaxK;
  const int64_t room =
      std::max(zeros ? q4nx::PaddedCols(elements) : q4nx::PaddedRows(elements), least);
  const npu::BufferView view = zeros ? memory.Zeros(room) : memory.Scratch(room);
  Alias(tensor, elements, type, view, zeros ? room : elements);
  return view;
}

npu::BufferView Batch::OutputRows(void* tensor, int64_t elements, DataType type, int64_t room) {
  const npu::BufferView view = memory.Scratch(room);
  Alias(tensor, elements, type, view, room);
  return view;
}

void Batch::Alias(void* tensor, int64_t elements, DataType type, npu::BufferView view, int64_t room,
                  std::function<void()> store) {
  const std::optional<size_t> written = tensors.Write(tensor, elements, type, view, room);
  if (!written) return;
  actions_.emplace_back([this, written = *written, tensor, elements, type, view,
                         store = std::move(store)](const Results& results) {
    if (!tensors.IsRead(written)) return;
    if (store) return store();
    const uint16_t* const from = results[view];
    threads_.ParallelFor(q4nx::CeilDiv(elements, kStoredTogether), host::PassNs(kStoredTogether),
                         [&](int64_t i) {
                           const int64_t first = i * kStoredTogether;
                           FromBfloat16(host::SelectedKernels(), from + first,
                                        std::min(kStoredTogether, elements - first), type,
                                        Advance(tensor, type, first));
                         });
  });
}

void Batch::After(const Step& step, std::function<void()> execute) {
  tensors.Follows(step);
  actions_.emplace_back([execute = std::move(execute)](const Results&) { execute(); });
}

void Batch::Finish(const std::function<bool(const void* tensor, size_t bytes)>& wanted) {
  tensors.ReadBy(
      [&](const void* tensor, size_t bytes) {
        return !temporaries_.Holds(tensor, bytes) || wanted(tensor, bytes);
      },
      [&](npu::BufferView view, int64_t elements) {
        if (BatchMemory::IsResult(view)) memory.Keep(view, elements);
      });
  memory.PlaceAll(submissions_);
}

void Batch::PrepareAll(uint8_t* inputs) const {
  for (const auto& prepare : preparations_) prepare(inputs);
}

void Batch::Complete(const uint8_t* arena) const {
  const Results results(memory, arena);
  for (const auto& action : actions_) action(results);
}

}  // namespace ort_aie::npu_target
