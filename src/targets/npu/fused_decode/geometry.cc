#include "targets/npu/fused_decode/geometry.h"

#include <algorithm>
#include <array>

#include "q4nx/layout.h"

namespace ort_aie::fused_decode {
namespace {

constexpr int64_t kBlockElements = q4nx::kBlockBytes / kElementBytes;

// From mlir-air e972f294 (2026-08-22): its builder's tables of models, and the sizes from its
// decode_geometry.py.
constexpr std::array kGeometries = {
    Geometry{.name = "llama-3.2-1b",
             .hidden = 2048,
             .heads = 32,
             .kv_heads = 8,
             .head_dim = 64,
             .rotary_dim = 64,
             .intermediate = 8192,
             .layers = 16,
             .norms = 2,
             .head_norms = false,
             .activation = Activation::kSilu,
             .head_rows = 18432,
             .head_chunks = 7,
             .group = 0},
    Geometry{.name = "llama-3.2-3b",
             .hidden = 3072,
             .heads = 24,
             .kv_heads = 8,
             .head_dim = 128,
             .rotary_dim = 128,
             .intermediate = 8192,
             .layers = 28,
             .norms = 2,
             .head_norms = false,
             .activation = Activation::kSilu,
             .head_rows = 9216,
             .head_chunks = 14,
             .group = 0},
    Geometry{.name = "gemma3-4b",
             .hidden = 2560,
             .heads = 8,
             .kv_heads = 4,
             .head_dim = 256,
             .rotary_dim = 256,
             .intermediate = 10240,
             .layers = 34,
             .norms = 4,
             .head_norms = true,
             .activation = Activation::kGeluTanh,
             .head_rows = 2560,
             .head_chunks = 103,
             .group = 0},
    Geometry{.name = "qwen3-8b",
             .hidden = 4096,
             .heads = 32,
             .kv_heads = 8,
             .head_dim = 128,
             .rotary_dim = 128,
             .intermediate = 12288,
             .layers = 36,
             .norms = 2,
             .head_norms = true,
             .activation = Activation::kSilu,
             .head_rows = 8192,
             .head_chunks = 19,
             .group = 9},
    Geometry{.name = "phi4-mini",
             .hidden = 3072,
             .heads = 24,
             .kv_heads = 8,
             .head_dim = 128,
             .rotary_dim = 96,
             .intermediate = 8192,
             .layers = 32,
             .norms = 2,
             .head_norms = false,
             .activation = Activation::kSilu,
             .head_rows = 18432,
             .head_chunks = 11,
             .group = 0},
};

Phase PhaseOf(int64_t rows, int64_t columns) {
  return {rows / q4nx::kBlockRows, columns / q4nx::kBlockCols};
}

}  // namespace

std::vector<Phase> Geometry::phases() const {
  return {PhaseOf(qkv_rows(), hidden), PhaseOf(hidden, heads * head_dim),
          PhaseOf(2 * intermediate, hidden), PhaseOf(hidden, intermediate)};
}

Phase Geometry::head_chunk() const { return PhaseOf(head_rows, hidden); }

int64_t Geometry::layer_elements() const {
  int64_t blocks = 0;
  for (const Phase& phase : phases()) blocks += phase.blocks();
  return blocks * kBlockElements;
}

int64_t Geometry::head_elements() const {
  return head_chunks * head_chunk().blocks() * kBlockElements;
}

std::vector<int64_t> Geometry::weight_elements() const {
  if (group == 0) return {layers * layer_elements() + head_elements()};
  std::vector<int64_t> sizes;
  for (int64_t first = 0; first < layers; first += group) {
    sizes.push_back(std::min(group, layers - first) * layer_elements());
  }
  sizes.push_back(head_elements());
  return sizes;
}

int64_t Geometry::rms_elements() const { return last_norm_offset() + hidden; }

int64_t Geometry::y_elements() const { return logits_offset() + head_chunks * head_rows; }

int64_t Geometry::kv_elements(int64_t positions) const {
  return layers * 2 * kAttentionGroups * positions * region_width();
}

int64_t Geometry::kv_offset(int64_t positions, int64_t layer, bool value, int64_t head,
                            int64_t position) const {
  const int64_t heads = kv_heads / kAttentionGroups;
  const int64_t region = (2 * layer + (value ? 1 : 0)) * kAttentionGroups + head / heads;
  return (region * positions + position) * region_width() + head % heads * head_dim;
}

std::span<const Geometry> Geometries() { return kGeometries; }

const Geometry* FindGeometry(std::string_view name) {
  const auto found = std::ranges::find(kGeometries, name, &Geometry::name);
  return found == kGeometries.end() ? nullptr : &*found;
}

}  // namespace ort_aie::fused_decode
