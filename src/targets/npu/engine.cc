#include "targets/npu/engine.h"

#include <algorithm>
#include <bit>
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
      kernels_(host::SelectedKernels()),
      generation_(NextGeneration()) {}

void Engine::Renew(uint64_t generation) {
  const std::lock_guard lock(renewing_);
  if (generation_ != generation) return;
  Forget();
  device_->Reset();
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

void Engine::Run(std::string_view design, const npu::Plan& plan, std::span<Buffer* const> buffers) {
  const TraceSpan traced("host", "run");
  device_->Run(design, plan, buffers);
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

Engine::Scratch Engine::TakeScratch(size_t bytes, bool both, Scratch before) {
  Scratch scratch{std::move(before.lock), {}};
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

int64_t ArgumentBytes(const npu::Manifest& manifest, const npu::Invocation& invocation,
                      std::string_view argument) {
  const auto sequence =
      std::ranges::find(manifest.sequences, invocation.sequence, &npu::Sequence::name);
  Require(sequence != manifest.sequences.end(), "the manifest of ", manifest.name,
          " has no sequence \"", invocation.sequence, "\"");
  std::vector<int64_t> frame(sequence->symbols.size());
  for (size_t slot = 0; slot < sequence->parameters.size(); ++slot) {
    const auto value = invocation.parameters.find(sequence->parameters[slot]);
    if (value == invocation.parameters.end()) {  // described only then, which takes a while
      Fail(ErrorCode::kInvalidArgument, npu::Describe(invocation),
           " has no value for the parameter \"", sequence->parameters[slot], "\"");
    }
    frame[slot] = value->second;
  }
  const auto found = std::ranges::find(sequence->arguments, argument, &npu::Argument::name);
  if (found == sequence->arguments.end()) {
    Fail(ErrorCode::kInvalidArgument, npu::Describe(invocation), " has no argument \"",
         std::string(argument), "\"");
  }
  return found->bytes.Evaluate(frame);
}

int64_t FloatBits(float value) { return std::bit_cast<int32_t>(value); }

}  // namespace ort_aie::npu_target
