#include "targets/npu/batch.h"

#include <algorithm>
#include <cstring>

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kAlignment = 256;      // bytes: no two regions share a cache line
constexpr int64_t kAddressMultiple = 4;  // bytes, of what a transfer can start at

}  // namespace

npu::BufferView Batch::Carve(Region region, int64_t elements) {
  const int64_t offset = sizes_[region];
  sizes_[region] += RoundUp(2 * elements, kAlignment);
  return {kFirstRegion + region, offset};
}

npu::BufferView Batch::View(std::shared_ptr<Buffer> buffer, int64_t offset) {
  auto found = std::ranges::find(buffers_, buffer);
  if (found == buffers_.end()) found = buffers_.insert(found, std::move(buffer));
  return {1 + static_cast<int>(found - buffers_.begin()), offset};
}

void Batch::Writes(const void* tensor, int64_t elements, DataType type,
                   std::optional<npu::BufferView> view) {
  written_.push_back({static_cast<const uint8_t*>(tensor),
                      static_cast<size_t>(elements) * SizeOf(type), SizeOf(type), view});
}

Batch::Source Batch::Find(const void* tensor, size_t bytes) const {
  const auto* first = static_cast<const uint8_t*>(tensor);
  Source source;
  for (const Written& written : written_) {  // the last one that writes it counts
    if (first == nullptr || first >= written.first + written.bytes ||
        written.first >= first + bytes) {
      continue;
    }
    source = {true, std::nullopt};
    if (!written.view || first < written.first || first + bytes > written.first + written.bytes) {
      continue;
    }
    const auto before = static_cast<size_t>(first - written.first) / written.element_bytes;
    const npu::BufferView view{written.view->argument,
                               written.view->offset + static_cast<int64_t>(2 * before)};
    if (view.offset % kAddressMultiple == 0) source = {false, view};
  }
  return source;
}

void Batch::Run() {
  const int64_t inputs = sizes_[kInputs], results = sizes_[kResults];
  const int64_t starts[kRegions] = {0, inputs, inputs + results};
  const auto arena =
      engine_.device().Allocate(static_cast<size_t>(inputs + results + sizes_[kScratch]));
  for (npu::Invocation& invocation : plan_) {
    for (auto& [name, view] : invocation.arguments) {
      if (view.argument < 0) view = {0, starts[view.argument - kFirstRegion] + view.offset};
    }
  }
  std::memcpy(arena->host(), inputs_.data(), static_cast<size_t>(inputs));
  arena->ToDevice(0, static_cast<size_t>(inputs));
  std::vector<Buffer*> buffers = {arena.get()};
  for (const auto& buffer : buffers_) buffers.push_back(buffer.get());
  engine_.Run(design_, plan_, buffers);
  arena->FromDevice(static_cast<size_t>(inputs), static_cast<size_t>(results));
  const Results completed(arena->host() + inputs);
  for (const auto& action : actions_) action(completed);
}

}  // namespace ort_aie::npu_target
