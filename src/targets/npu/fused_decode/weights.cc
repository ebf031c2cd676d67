#include "targets/npu/fused_decode/weights.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "q4nx/layout.h"
#include "q4nx/pack.h"

namespace ort_aie::fused_decode {
namespace {

using q4nx::kBlockBytes;
using q4nx::kBlockRows;

constexpr int64_t kCoresInColumn = kCores / kColumns;

// A row of blocks: its first one, or null for zeros.
struct Row {
  const uint8_t* blocks = nullptr;
  WeightForm form = {};
};
// Those of a phase, in order.
using RowBlocks = std::vector<Row>;

void Append(RowBlocks& all, const MatrixRows& matrix, int64_t first, int64_t count,
            int64_t column_blocks) {
  const int64_t bytes = column_blocks * q4nx::BlockBytes(matrix.form);
  for (int64_t g = first; g < first + count; ++g) {
    all.push_back({matrix.blocks + g * bytes, matrix.form});
  }
}

void RequireRows(const char* name, const MatrixRows& matrix, int64_t rows) {
  Require(matrix.rows == rows, "the fused decode needs ", rows, " rows of ", name, ", got ",
          matrix.rows);
}

uint8_t* PackPhase(const RowBlocks& rows, const Phase& phase, Channels channels, uint8_t* packed) {
  const int64_t halves = channels == Channels::kTwo ? 2 : 1;
  const int64_t together = kCoresInColumn / halves;
  for (int64_t cx = 0; cx < kColumns; ++cx) {
    for (int64_t h = 0; h < halves; ++h) {
      for (int64_t i = 0; i < phase.row_blocks / kCores; ++i) {
        for (int64_t j = 0; j < phase.column_blocks; ++j) {
          for (int64_t cy = h * together; cy < (h + 1) * together; ++cy) {
            const Row& row = rows[static_cast<size_t>(kCores * i + kCoresInColumn * cx + cy)];
            const int64_t at = j * q4nx::BlockBytes(row.form);
            if (row.blocks == nullptr) {
              std::memset(packed, 0, kBlockBytes);
            } else if (row.form == q4nx::kShipping) {
              std::memcpy(packed, row.blocks + at, kBlockBytes);
            } else {
              q4nx::Widen(row.blocks + at, row.form, 1, packed);
            }
            packed += kBlockBytes;
          }
        }
      }
    }
  }
  return packed;
}

}  // namespace

void PackLayer(const Geometry& geometry, Channels channels, const LayerWeights& layer,
               uint8_t* packed) {
  const std::vector<Phase> phases = geometry.phases();
  int64_t qkv_rows = 0;
  for (const MatrixRows& part : layer.qkv) {
    Require(part.rows % kBlockRows == 0, "the fused decode needs queries, keys and values of ",
            "whole blocks of ", kBlockRows, " rows, got ", part.rows);
    qkv_rows += part.rows;
  }
  RequireRows("query, key and value", {nullptr, qkv_rows}, geometry.qkv_rows());
  RequireRows("output", layer.o, geometry.hidden);
  RequireRows("up", layer.up, geometry.intermediate);
  RequireRows("gate", layer.gate, geometry.intermediate);
  RequireRows("down", layer.down, geometry.hidden);

  RowBlocks qkv, o, up_gate, down;
  for (const MatrixRows& part : layer.qkv) {
    Append(qkv, part, 0, part.rows / kBlockRows, phases[0].column_blocks);
  }
  Append(o, layer.o, 0, phases[1].row_blocks, phases[1].column_blocks);
  constexpr int64_t kTurn = kInterleave / kBlockRows;
  for (int64_t first = 0; first < phases[2].row_blocks / 2; first += kTurn) {
    Append(up_gate, layer.up, first, kTurn, phases[2].column_blocks);
    Append(up_gate, layer.gate, first, kTurn, phases[2].column_blocks);
  }
  Append(down, layer.down, 0, phases[3].row_blocks, phases[3].column_blocks);

  packed = PackPhase(qkv, phases[0], channels, packed);
  packed = PackPhase(o, phases[1], channels, packed);
  packed = PackPhase(up_gate, phases[2], channels, packed);
  PackPhase(down, phases[3], channels, packed);
}

void PackHeadChunk(const Geometry& geometry, Channels channels, const MatrixRows& head,
                   int64_t chunk, uint8_t* packed) {
  const Phase phase = geometry.head_chunk();
  const int64_t there = q4nx::RowBlocks(head.rows), room = geometry.head_chunks * phase.row_blocks;
  Require(there <= room && there > room - phase.row_blocks, "the fused decode of ", geometry.name,
          " has room for a vocabulary of more than ",
          (geometry.head_chunks - 1) * geometry.head_rows, " and at most ",
          geometry.head_chunks * geometry.head_rows, ", got ", head.rows);
  const int64_t first = chunk * phase.row_blocks, count = std::min(phase.row_blocks, there - first);
  RowBlocks rows;
  Append(rows, head, first, count, phase.column_blocks);
  rows.resize(static_cast<size_t>(phase.row_blocks));
  PackPhase(rows, phase, channels, packed);
}

int64_t HeadChunkBytes(const Geometry& geometry) {
  return geometry.head_chunk().blocks() * kBlockBytes;
}

}  // namespace ort_aie::fused_decode
