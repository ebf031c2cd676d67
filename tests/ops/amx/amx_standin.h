// Intel's tile instructions (AMX) in plain C++, under the names of the intrinsics. Code that
// includes this header instead of <immintrin.h> runs on any CPU. Only what the kernels use is here.
//
// Source of the semantics: Intel's Software Developer's Manual, volume 2, and its chapter on AMX in
// volume 1. Where an instruction would raise an exception, the process ends with a message that
// says what is wrong. A configuration whose start row is not 0, which an interrupted load leaves
// behind, is refused as well. With several NaN inputs, it is not specified which NaN results.
//
// Tiles belong to a thread; here, to a thread and a source file that includes this. Compiled for
// the baseline, because it uses the C library.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// If another header includes <immintrin.h>, some of the names are macros.
#undef _tile_dpbf16ps
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero

namespace ort_aie::host {
namespace {

constexpr int kTiles = 8, kTileRows = 16, kTileRowBytes = 64;  // of palette 1

struct TileState {
  bool configured;
  struct Tile {
    int rows, colsb;  // both 0: the tile cannot be used
    uint8_t bytes[kTileRows][kTileRowBytes];
  } tiles[kTiles];
};
thread_local TileState tile_state;

[[noreturn]] void TileFault(const char* instruction, const char* what, int a = 0, int b = 0,
                            int c = 0, int d = 0) {
  fprintf(stderr, "ort_aie_ep: stand-in for AMX: %s: ", instruction);
  fprintf(stderr, what, a, b, c, d);
  fputc('\n', stderr);
  abort();
}

inline TileState::Tile& TileNumber(const char* instruction, int number) {
  if (number < 0 || number >= kTiles) {
    TileFault(instruction, "there is no tile %d; they are 0 to 7", number);
  }
  if (!tile_state.configured) {
    TileFault(instruction, "no configuration is loaded on this thread (tile %d)", number);
  }
  TileState::Tile& tile = tile_state.tiles[number];
  if (tile.rows == 0) TileFault(instruction, "tile %d has no rows in the configuration", number);
  return tile;
}

// LDTILECFG: 64 bytes: the palette, the start row, 14 zeros, the bytes per row of each of 16 tiles
// (16 bits), and the rows of each (8 bits). Palette 0 is TILERELEASE.
[[maybe_unused]] void _tile_loadconfig(const void* config) {
  const char* const name = "_tile_loadconfig";
  uint8_t bytes[64];
  memcpy(bytes, config, sizeof bytes);
  TileState next = {};
  if (bytes[0] > 1) TileFault(name, "palette %d is neither 0 nor 1", bytes[0]);
  if (bytes[0] == 1) {
    next.configured = true;
    if (bytes[1] != 0) TileFault(name, "the start row is %d, expected 0", bytes[1]);
    for (int i = 2; i < 16; ++i) {
      if (bytes[i] != 0) TileFault(name, "byte %d is %d, expected 0", i, bytes[i]);
    }
    for (int i = 0; i < 16; ++i) {
      const int colsb = bytes[16 + 2 * i] | bytes[17 + 2 * i] << 8, rows = bytes[48 + i];
      if (i >= kTiles) {
        if (colsb != 0 || rows != 0) TileFault(name, "there is no tile %d; they are 0 to 7", i);
        continue;
      }
      if (colsb > kTileRowBytes) {
        TileFault(name, "tile %d has %d bytes in a row, expected at most 64", i, colsb);
      }
      if (rows > kTileRows) TileFault(name, "tile %d has %d rows, expected at most 16", i, rows);
      if ((colsb == 0) != (rows == 0)) {
        TileFault(name, "tile %d has %d rows of %d bytes", i, rows, colsb);
      }
      next.tiles[i].rows = rows;
      next.tiles[i].colsb = colsb;
    }
  }
  tile_state = next;
}

[[maybe_unused]] void _tile_release() { tile_state = {}; }

[[maybe_unused]] void _tile_zero(int tile) {
  TileState::Tile& to = TileNumber("_tile_zero", tile);
  memset(to.bytes, 0, sizeof to.bytes);
}

// Rows are `stride` bytes apart, with any alignment.
[[maybe_unused]] void _tile_loadd(int tile, const void* base, int64_t stride) {
  TileState::Tile& to = TileNumber("_tile_loadd", tile);
  memset(to.bytes, 0, sizeof to.bytes);
  for (int row = 0; row < to.rows; ++row) {
    memcpy(to.bytes[row], static_cast<const uint8_t*>(base) + row * stride,
           static_cast<size_t>(to.colsb));
  }
}

[[maybe_unused]] void _tile_stored(int tile, void* base, int64_t stride) {
  const TileState::Tile& from = TileNumber("_tile_stored", tile);
  for (int row = 0; row < from.rows; ++row) {
    memcpy(static_cast<uint8_t*>(base) + row * stride, from.bytes[row],
           static_cast<size_t>(from.colsb));
  }
}

// Denormals count as zero, before an operation and after it.
inline float FlushTiny(float x) {
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}

inline float WidenBfloat16(const uint8_t* two_bytes) {
  uint16_t half;
  memcpy(&half, two_bytes, sizeof half);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return FlushTiny(x);
}

// a * b + c, rounded once. A result is tiny if it is below 2^-126 when rounded to 24 bits with an
// unlimited exponent. Just below 2^-126 the C library rounds to 23 bits, and returns 2^-126 where
// rounding to 24 bits gives less. In that case the operands are of a size that can be scaled.
inline float MultiplyAddFlushed(float a, float b, float c) {
  const float sum = __builtin_fmaf(a, b, c);
  if (__builtin_fabsf(sum) == 0x1p-126f &&
      __builtin_fabsf(__builtin_fmaf(a * 0x1p64f, b, c * 0x1p64f)) < 0x1p-62f) {
    return __builtin_copysignf(0.0f, sum);
  }
  return FlushTiny(sum);
}

// TDPBF16PS: c (M, N) float32 += a (M, K) . b (K, N), a and b pairs of bfloat16 along K. Rounds to
// nearest even. The products of the first halves of pairs and those of the second halves are summed
// separately, in the order of K, then added to each other, and the result to c.
[[maybe_unused]] void _tile_dpbf16ps(int c, int a, int b) {
  const char* const name = "_tile_dpbf16ps";
  TileState::Tile& to = TileNumber(name, c);
  const TileState::Tile &left = TileNumber(name, a), &right = TileNumber(name, b);
  if (a == b || b == c || a == c) {
    TileFault(name, "tiles %d, %d and %d are not three tiles", c, a, b);
  }
  const int operands[] = {c, a, b};
  for (const int tile : operands) {
    const int colsb = tile_state.tiles[tile].colsb;
    if (colsb % 4 != 0) {
      TileFault(name, "tile %d has rows of %d bytes, expected a multiple of 4", tile, colsb);
    }
  }
  if (to.rows != left.rows) {
    TileFault(name, "tile %d has %d rows, expected %d as in the first factor", c, to.rows,
              left.rows);
  }
  if (left.colsb / 4 != right.rows) {
    TileFault(name, "tile %d has %d rows, expected one for each of the %d pairs of tile %d", b,
              right.rows, left.colsb / 4, a);
  }
  if (to.colsb != right.colsb) {
    TileFault(name, "tile %d has rows of %d bytes, expected %d as in the second factor", c,
              to.colsb, right.colsb);
  }
  for (int m = 0; m < to.rows; ++m) {
    float sums[kTileRowBytes / 2] = {};
    for (int k = 0; k < right.rows; ++k) {
      const float pair[2] = {WidenBfloat16(left.bytes[m] + 4 * k),
                             WidenBfloat16(left.bytes[m] + 4 * k + 2)};
      for (int n = 0; n < to.colsb / 2; ++n) {
        sums[n] = MultiplyAddFlushed(pair[n % 2], WidenBfloat16(right.bytes[k] + 2 * n), sums[n]);
      }
    }
    for (int n = 0; n < to.colsb / 4; ++n) {
      float sum;
      memcpy(&sum, to.bytes[m] + 4 * n, sizeof sum);
      sum = FlushTiny(FlushTiny(sum) + FlushTiny(sums[2 * n] + sums[2 * n + 1]));
      memcpy(to.bytes[m] + 4 * n, &sum, sizeof sum);
    }
  }
}

}  // namespace
}  // namespace ort_aie::host
