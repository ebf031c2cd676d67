// The models that mlir-air's fused decode is built for. A geometry is compiled into its overlay,
// and nothing in the overlay names it, so all sizes are checked against this table.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ops/plan.h"

namespace ort_aie::fused_decode {

// The overlay treats all weights as bfloat16 elements; its makers count buffers in these.
inline constexpr int64_t kElementBytes = 2;
inline constexpr int64_t kCores = 16;           // cores that multiply: 4 columns of 4
inline constexpr int64_t kColumns = 4;          // of those cores
inline constexpr int64_t kInterleave = 512;     // rows of up, then as many of gate
inline constexpr int64_t kAttentionGroups = 2;  // halves of the KV heads, each with its own region
inline constexpr float kEpsilon = 1e-6f;        // in every norm, compiled into the overlay

// A matrix in the order of the cores, in blocks of 32 rows x 256 columns.
struct Phase {
  int64_t row_blocks, column_blocks;

  int64_t blocks() const { return row_blocks * column_blocks; }
};

struct Geometry {
  std::string_view name;  // mlir-air's DECODE_MODEL
  int64_t hidden, heads, kv_heads, head_dim, rotary_dim, intermediate, layers;
  int64_t norms;    // per layer, each of `hidden` weights
  bool head_norms;  // for queries and keys; if true, each layer has its own rotary values
  Activation activation;
  int64_t head_rows;  // rows of the LM head in a chunk
  int64_t head_chunks;
  int64_t group;  // layers in a buffer of weights; 0: one buffer holds all weights

  int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dim; }
  // Query, key and value; output; up and gate; down.
  std::vector<Phase> phases() const;
  Phase head_chunk() const;

  // Sizes in elements.
  int64_t layer_elements() const;  // weights
  int64_t head_elements() const;   // all chunks
  // The sizes of the weight buffers: a single one, or those of layers and, last, that of the LM
  // head.
  std::vector<int64_t> weight_elements() const;
  int64_t rms_elements() const;
  int64_t y_elements() const;
  int64_t kv_elements(int64_t positions) const;

  // Places in those buffers, in elements.
  // rms: the norms of each layer, in the order of the model; then slabs of rotary values, one per
  // layer or one for all (cos, sin, each of rotary_dim / 2, and the norms of a query and of a key);
  // then the last norm.
  int64_t norm_offset(int64_t layer, int64_t norm) const { return (layer * norms + norm) * hidden; }
  int64_t rotary_slabs() const { return head_norms ? layers : 1; }
  int64_t rotary_slab() const { return rotary_dim + (head_norms ? 2 * head_dim : 0); }
  int64_t rotary_offset(int64_t slab) const {
    return norm_offset(layers, 0) + slab * rotary_slab();
  }
  int64_t last_norm_offset() const { return rotary_offset(rotary_slabs()); }
  // y: logits in the order of the vocabulary.
  int64_t logits_offset() const { return qkv_rows() + hidden; }
  // kvc: for each layer, the keys of the first half of the heads, those of the second half, then
  // the values likewise. Such a region has room for `positions`, each with the rows of its heads
  // one after the other.
  int64_t region_width() const { return kv_heads / kAttentionGroups * head_dim; }
  int64_t kv_offset(int64_t positions, int64_t layer, bool value, int64_t head,
                    int64_t position) const;
};

std::span<const Geometry> Geometries();
// Null if the name is unknown.
const Geometry* FindGeometry(std::string_view name);

}  // namespace ort_aie::fused_decode
