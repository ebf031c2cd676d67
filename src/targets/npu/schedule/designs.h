// The designs that the executor runs, by the names of their overlays, and their limits.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include "common/design_limits.h"
#include "npu/manifest.h"
#include "q4nx/layout.h"

namespace ort_aie::npu_target {

inline constexpr std::string_view kDecode = "decode";
inline constexpr std::string_view kFusedLayer = "fused_layer";
inline constexpr std::string_view kFusedDqp = "fused_dqp";
inline constexpr std::string_view kFlowKv = "flow_kv";
inline constexpr std::string_view kFlowQkv = "flow_qkv";
inline constexpr std::string_view kDequant = "dequant";
inline constexpr std::string_view kGemm = "gemm";
// The same with weights in bfp16: the same bits of results, and 9/16 of the bytes.
inline constexpr std::string_view kDequantBfp16 = "dequant_bfp16";
inline constexpr std::string_view kGemmBfp16 = "gemm_bfp16";
inline constexpr std::string_view kShortGemm = "short_gemm";
inline constexpr std::string_view kDesigns[] = {kDecode,    kFusedLayer, kFusedDqp,     kFlowKv,
                                                kFlowQkv,   kDequant,    kDequantBfp16, kGemm,
                                                kGemmBfp16, kShortGemm};
// Those that read quantised weights. They have a package for each form.
inline constexpr std::string_view kReaders[] = {kDecode,  kFusedLayer,   kFusedDqp,
                                                kDequant, kDequantBfp16, kShortGemm};

// The overlays of a prompt's products: B as the first reads it and the second writes it.
struct PromptOverlays {
  std::string_view gemm = kGemm, dequant = kDequant;

  bool bfp16() const { return gemm == kGemmBfp16; }
  // Of B for n out-features and k in-features, in whole blocks.
  int64_t WeightBytes(int64_t n, int64_t k) const { return n * k * (bfp16() ? 9 : 16) / 8; }
};

// The package of a design for weights of a form of Q4NX.
inline std::string PackageOf(std::string_view design, const WeightForm& form) {
  const bool reads = std::ranges::find(kReaders, design) != std::end(kReaders);
  return reads ? npu::PackageName(design, {form.group, form.minima}) : std::string(design);
}

// Rows and columns are counted in whole blocks.
inline constexpr int64_t kLeastN = 128;
inline constexpr int64_t kMatvecMaxK = design_limits::kMatvecK;                  // of one part
inline constexpr int64_t kMatvecMaxBias = design_limits::kBiasRounds * 16 * 32;  // on 16 cores
inline constexpr int64_t kGemmMaxK = design_limits::kGemmK;
inline constexpr int64_t kGemmLeastRows = 64;
inline constexpr int64_t kShortGemmMaxK = design_limits::kShortGemmK;
inline constexpr int64_t kShortGemmLeastN = 256;
inline constexpr int64_t kMaxHeadDim = 256;
inline constexpr int64_t kVectorMaxK = design_limits::kVectorRow;
inline constexpr int64_t kGluLeast = 256;
inline constexpr int64_t kRowOperatorsMaxK = design_limits::kSlabs * 256;

// The number of out-features that the device computes: whole blocks, and at least a minimum. Those
// without weights are zeros.
inline int64_t DeviceRows(int64_t n) { return std::max(q4nx::PaddedRows(n), kLeastN); }

// A float as a parameter of a sequence.
inline int64_t FloatBits(float value) { return std::bit_cast<int32_t>(value); }

// Whether the device has an overlay: a package of a design.
using HasOverlay = std::function<bool(std::string_view package)>;

// The overlay for a step of one row: the overlay of a token's steps, or, on a device without room
// for it, the one for this kind of step. Empty if there is neither.
inline std::string_view ProjectionDesign(const HasOverlay& has) {
  if (has(kDecode)) return kDecode;
  return has(kFusedDqp) ? kFusedDqp : std::string_view();
}
inline std::string_view AttentionDesign(const HasOverlay& has) {
  if (has(kDecode)) return kDecode;
  return has(kFlowKv) ? kFlowKv : std::string_view();
}

}  // namespace ort_aie::npu_target
