// Q4NX blocks in the order in which mlir-air's fused decode reads them. Its blocks are those of the
// shipping form, byte for byte, so packing only permutes, widens and copies blocks.
//
// A phase is a matrix of row blocks g = 16 i + 4 cx + cy and column blocks j. cx is one of the four
// columns of cores that multiply, and has shim channels of its own; cy is the core in it. The
// blocks of a column are adjacent:
//   kTwo  for cx, for half h, for i, for j, for cy in {2 h, 2 h + 1}: each half is a channel's
//   kOne  for cx, for i, for j, for cy
// A layer is its phases one after the other: rows of query, key and value; of output; 512 of up,
// 512 of gate and so on; of down. The LM head follows in chunks, padded with blocks of zeros.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "q4nx/layout.h"
#include "targets/npu/fused_decode/geometry.h"

namespace ort_aie::fused_decode {

// Shim channels that deliver a column's weights: mlir-air's W_DUAL_CHAN.
enum class Channels { kOne, kTwo };

// Rows of a matrix, as in a model: blocks (ceil(rows/32), column blocks of the phase, bytes of the
// form), which are widened as they are packed.
struct MatrixRows {
  const uint8_t* blocks;
  int64_t rows;
  WeightForm form = {};
};

struct LayerWeights {
  std::vector<MatrixRows> qkv;  // q, k and v one after the other, or all in one
  MatrixRows o, up, gate, down;
};

// Writes layer_elements() of weights. Throws Error if numbers of rows do not fit the geometry.
void PackLayer(const Geometry& geometry, Channels channels, const LayerWeights& layer,
               uint8_t* packed);

// Writes chunk `chunk` of the LM head; `head` has all rows.
void PackHeadChunk(const Geometry& geometry, Channels channels, const MatrixRows& head,
                   int64_t chunk, uint8_t* packed);

int64_t HeadChunkBytes(const Geometry& geometry);

}  // namespace ort_aie::fused_decode
