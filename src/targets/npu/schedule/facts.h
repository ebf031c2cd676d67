// What a schedule depends on beside the plan: the packages of a device, and how much of its memory
// a prompt takes.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>

#include "ops/plan.h"
#include "targets/npu/schedule/designs.h"

namespace ort_aie::npu_target {

// The most device memory that a prompt takes. kWeightBytes are for dequantised weights: they hold a
// layer of a model with 8 billion parameters, so that each layer changes to that overlay once.
// kRowBytes are for rows of activations or products, kQueryBytes for queries or outputs of
// attention. A larger matrix is divided into bands of out-features, a longer prompt into chunks.
inline constexpr int64_t kWeightBytes = 512 << 20, kRowBytes = 32 << 20, kQueryBytes = 8 << 20;

struct DeviceFacts {
  // Whether there is a package, and its manifest, or null.
  HasOverlay has;
  std::function<const npu::Manifest*(std::string_view package)> overlay;
  // Whether two packages are in one xclbin, so that a change from one to the other is cheap.
  std::function<bool(std::string_view, std::string_view)> share_context;
  // As in ExecutorOptions.
  int64_t weight_bytes = kWeightBytes, row_bytes = kRowBytes, query_bytes = kQueryBytes;
  // Of the plan.
  PromptOverlays prompts = {};
};

// Whether there is a package with all of these sequences.
bool HasSequences(const DeviceFacts& facts, std::string_view package,
                  std::initializer_list<std::string_view> names);

// The form in which the device has the weights of a plan's projections.
WeightForm FormOfPlan(const DeviceFacts& facts, const Plan& plan);

// The overlays for the prompts of a plan whose weights are in `form` there: those for bfp16, unless
// the plan has products of several rows with weights in bfloat16.
PromptOverlays PromptOverlaysOf(const DeviceFacts& facts, const Plan& plan, const WeightForm& form);

}  // namespace ort_aie::npu_target
