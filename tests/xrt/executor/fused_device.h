// A device for tests with an overlay that looks to its user like mlir-air's fused decode. It
// unpacks a token's data with separate loops into a decoder, which the host computes. Only
// transfers bring it what the host writes, and memory that no one has written is NaN.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "targets/npu/device.h"
#include "targets/npu/fused_decode/geometry.h"

namespace ort_aie::npu_target {

class FusedDevice final : public Device {
 public:
  FusedDevice(const fused_decode::Geometry& geometry, int64_t channels)
      : geometry_(geometry), channels_(channels) {}

  const std::string& name() const override { return name_; }
  const npu::Manifest* Overlay(std::string_view) override { return nullptr; }
  std::shared_ptr<Buffer> Allocate(size_t bytes) override;
  std::vector<DeviceMemory> Pin(std::span<const HostMemory>) override { return {}; }
  void Submit(std::span<const Part>, std::span<Buffer* const>) override {}
  std::unique_ptr<OtherStream> Load(const OtherOverlay& overlay,
                                    std::span<const uint32_t> words) override;
  void Reset() override { ++resets; }
  Counters counters() const override { return {}; }
  std::vector<std::string> NoticesFrom(size_t) const override { return {}; }

  // The positions in an overlay's cache, by the overlay's path.
  std::map<std::string, int64_t> windows;
  // Called before a run; an exception that it throws ends the run.
  std::function<void()> before_run = [] {};
  int64_t resets = 0;
  std::vector<std::string> runs;  // overlays
  // The live counts, which may outlive the device.
  struct Alive {
    int64_t buffers = 0, streams = 0, most_streams = 0;
  };
  std::shared_ptr<Alive> alive = std::make_shared<Alive>();

  // In the words: which one has the length, and which one has the byte of the token's row in a
  // region.
  static constexpr size_t kLengthWord = 3, kRowWord = 7;

 private:
  class Stream;
  void Token(int64_t positions, int64_t length, std::span<Buffer* const> buffers);

  const fused_decode::Geometry geometry_;
  const int64_t channels_;
  const std::string name_ = "NPU of a test";
};

}  // namespace ort_aie::npu_target
