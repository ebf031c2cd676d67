#include "targets/npu/engine.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"

namespace ort_aie::npu_target {
namespace {

uint64_t NextGeneration() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

Engine::Engine(std::shared_ptr<Device> device, const ExecutorOptions& options)
    : device_(std::move(device)),
      options_(options),
      facts_{
          .has = [&device = *device_](std::string_view p) { return device.Overlay(p) != nullptr; },
          .overlay = [&device = *device_](std::string_view p) { return device.Overlay(p); },
          .share_context = [&device = *device_](auto a,
                                                auto b) { return device.ShareContext(a, b); },
          .weight_bytes = options.weight_bytes,
          .row_bytes = options.row_bytes,
          .query_bytes = options.query_bytes},
      kernels_(host::SelectedKernels()),
      generation_(NextGeneration()) {}

void Engine::Renew(uint64_t generation) {
  const std::lock_guard lock(renewing_);
  if (generation_ != generation) return;
  Forget();
  device_->Reset();
}

void Engine::Fallback(const DeviceError& fault) {
  if (options_.raise_on_error) {
    Forget();
    Fail(ErrorCode::kRuntime, device_->name(), ": ", fault.what(),
         "; a fresh context did not help");
  }
  Count([](ExecutorCounters& counters) { ++counters.fallbacks; });
}

void Engine::Forget() { generation_ = NextGeneration(); }

void Engine::GiveUp() {
  Forget();
  {
    const std::lock_guard lock(scratch_mutex_);
    for (auto& buffer : scratch_) buffer.reset();
  }
  device_->Reset();
}

void Engine::Submit(std::span<const Part> parts, std::span<Buffer* const> buffers) {
  const TraceSpan traced("host", "run");
  device_->Submit(parts, buffers);
}

void Engine::Report(std::string_view line) const {
  const std::string text = Concat(device_->name(), ": ", line);
  if (options_.report) {
    options_.report(text);
  } else {
    std::fprintf(stderr, "ort_aie_ep: %s\n", text.c_str());
  }
}

void Engine::ReportNotices() {
  const std::lock_guard lock(notices_mutex_);
  for (const std::string& notice : device_->NoticesFrom(notices_)) {
    Report(notice);
    ++notices_;
  }
}

ScratchBuffers Engine::TakeScratch(size_t bytes, bool both, ScratchBuffers before) {
  ScratchBuffers scratch{std::move(before.lock), {}};
  if (!scratch.lock.owns_lock()) scratch.lock = std::unique_lock(scratch_mutex_);
  for (auto& buffer : before.buffers) buffer.reset();
  if (scratch_generation_ != generation_) {
    for (auto& buffer : scratch_) buffer.reset();
    scratch_generation_ = generation_;
  }
  for (size_t i = 0; i < (both ? 2u : 1u); ++i) {
    if (scratch_[i] == nullptr || scratch_[i]->size() < bytes) {
      scratch_[i].reset();  // free it before the next is allocated
      scratch_[i] = device_->Allocate(bytes);
    }
    scratch.buffers[i] = scratch_[i];
  }
  return scratch;
}

}  // namespace ort_aie::npu_target
