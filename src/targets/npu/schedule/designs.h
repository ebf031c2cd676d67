// The designs that the executor runs, by the names of their overlays, and their limits.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>
#include <string_view>

#include "common/design_limits.h"
#include "npu/manifest.h"
#include "q4nx/layout.h"

namespace ort_aie::npu_target {

// A design by the name of its overlay; none by default. It can be used as a name, but no name, such
// as a package's, can be used as a design.
class Design {
 public:
  constexpr Design() = default;
  explicit consteval Design(std::string_view name) : name_(name) {}
  constexpr operator std::string_view() const { return name_; }
  constexpr bool empty() const { return name_.empty(); }
  friend constexpr bool operator==(Design, Design) = default;
  friend std::ostream& operator<<(std::ostream& out, Design design) { return out << design.name_; }

 private:
  std::string_view name_;
};

inline constexpr Design kDecode{"decode"};
inline constexpr Design kFusedLayer{"fused_layer"};
inline constexpr Design kFusedDqp{"fused_dqp"};
inline constexpr Design kFlowKv{"flow_kv"};
inline constexpr Design kFlowQkv{"flow_qkv"};
inline constexpr Design kDequant{"dequant"};
inline constexpr Design kGemm{"gemm"};
// The same with weights in bfp16: the same bits of results, and 9/16 of the bytes.
inline constexpr Design kDequantBfp16{"dequant_bfp16"};
inline constexpr Design kGemmBfp16{"gemm_bfp16"};
inline constexpr Design kShortGemm{"short_gemm"};
inline constexpr Design kDesigns[] = {kDecode,  kFusedLayer,   kFusedDqp, kFlowKv,    kFlowQkv,
                                      kDequant, kDequantBfp16, kGemm,     kGemmBfp16, kShortGemm};
// Those that read quantised weights. They have a package for each form.
inline constexpr Design kReaders[] = {kDecode,  kFusedLayer,   kFusedDqp,
                                      kDequant, kDequantBfp16, kShortGemm};

// The overlays of a prompt's products: B as the first reads it and the second writes it.
struct PromptOverlays {
  Design gemm = kGemm, dequant = kDequant;

  bool bfp16() const { return gemm == kGemmBfp16; }
  // Of B for n out-features and k in-features, in whole blocks.
  int64_t WeightBytes(int64_t n, int64_t k) const { return n * k * (bfp16() ? 9 : 16) / 8; }
};

// The package of a design for weights of a form of Q4NX.
inline std::string PackageOf(Design design, const WeightForm& form) {
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
inline Design ProjectionDesign(const HasOverlay& has) {
  if (has(kDecode)) return kDecode;
  return has(kFusedDqp) ? kFusedDqp : Design();
}
inline Design AttentionDesign(const HasOverlay& has) {
  if (has(kDecode)) return kDecode;
  return has(kFlowKv) ? kFlowKv : Design();
}

}  // namespace ort_aie::npu_target
