// Dequantised weights of a prompt.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>

#include "targets/npu/schedule/batch.h"
#include "targets/npu/schedule/device_contents.h"
#include "targets/npu/schedule/facts.h"

namespace ort_aie::npu_target {

// Whether `short_gemm` does a projection of a prompt, whose weights it takes as they are. It is for
// few rows, and only where the change to it and back is cheap.
bool IsShort(const DeviceFacts& facts, const MatMulStep& step);

// Dequantises the weights of several projections of a plan at once, as many as there is room for,
// because dequantisation has a separate overlay, and the device changes to it and back each
// time.
class PromptWeights {
 public:
  // on_device(step): whether the device does that projection.
  PromptWeights(const DeviceFacts& facts, DeviceContents& contents,
                std::function<bool(const Step& step)> on_device)
      : facts_(facts), contents_(contents), on_device_(std::move(on_device)) {}

  // Whether there is room for a matrix of a projection.
  static bool HasRoom(const DeviceFacts& facts, const MatMulStep& step);

  // The places, in GEMM's layout, for the first of the steps, a projection of quantised weights. If
  // it has not been dequantised, this adds that work, together with that of later projections.
  WeightPlaces Get(Batch& batch, std::span<const Step> steps);
  // Call this before the scratch memory is taken for anything else, and if a batch has not run.
  void Forget();

 private:
  void Dequantise(Batch& batch, std::span<const Step> steps);

  const DeviceFacts& facts_;
  DeviceContents& contents_;
  const std::function<bool(const Step& step)> on_device_;
  uint64_t generation_ = 0;
  ScratchBuffers scratch_;
  std::map<const uint8_t*, int64_t> offsets_;  // by their quantised blocks
};

}  // namespace ort_aie::npu_target
