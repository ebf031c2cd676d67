// A device for tests: executes the invocations of a plan, in the runs of its stream, by references
// of the sequences. Only transfers bring it what the host writes, and memory that no one has
// written is NaN.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "npu/stream.h"
#include "targets/npu/device.h"

namespace ort_aie::npu_target {

class ReferenceDevice final : public Device {
 public:
  // The manifests <folder>/<design>.json of `designs`.
  ReferenceDevice(const std::filesystem::path& folder, const std::set<std::string>& designs);

  const std::string& name() const override { return name_; }
  const npu::Manifest* Overlay(std::string_view design) override;
  bool ShareContext(std::string_view one, std::string_view other) override {
    return one_context && Overlay(one) != nullptr && Overlay(other) != nullptr;
  }
  std::shared_ptr<Buffer> Allocate(size_t bytes) override;
  std::vector<DeviceMemory> Pin(std::span<const HostMemory> ranges) override;
  void Submit(std::span<const Part> parts, std::span<Buffer* const> buffers) override;
  void Reset() override { ++resets; }
  Counters counters() const override { return *counters_; }
  std::vector<std::string> NoticesFrom(size_t first) const override {
    return {notices.begin() + static_cast<std::ptrdiff_t>(first), notices.end()};
  }

  // Called before a plan's stream is made; throws Error for a plan that a sequence refuses.
  std::function<void(const npu::Invocations&)> before_plan;
  // Called before a run. An exception that it throws ends the run, and the plan's buffers then hold
  // NaN.
  std::function<void(int64_t run)> before_run;
  // Called with the device's memory after an invocation: each argument's first byte.
  std::function<void(const npu::Invocation&, const std::map<std::string, uint8_t*>& places)>
      after_call;
  std::function<void(size_t bytes)> before_allocation;
  std::vector<std::string> notices;
  int64_t resets = 0;
  bool one_context = true;               // of all overlays
  size_t most_pinned = kMaxBufferBytes;  // in one buffer
  std::vector<std::string> sequences;    // those executed

 private:
  void RunPart(const Part& part, const npu::InstructionStream& stream,
               std::span<Buffer* const> buffers);

  const std::string name_ = "NPU Reference";
  std::map<std::string, const npu::Manifest*, std::less<>> manifests_;
  std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  std::mutex mutex_;
};

}  // namespace ort_aie::npu_target
