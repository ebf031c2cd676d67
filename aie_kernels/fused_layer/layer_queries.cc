// The queries of a decoder layer reach all score cores; each keeps those of its own units: a
// unit is the queries of a KV head, or an equal part of them.

#include "../common/float_math.h"

namespace {

constexpr int32_t kObject = 256;
constexpr int32_t kPiece = 64;
constexpr int32_t kPairs = 4;

}  // namespace

extern "C" {

// Keeps the pieces of `pair` out of object `index` of the queries: sweep s takes unit
// 4 s + pair, or the last one if there are not so many; its `size` queries go to queries[s * size].
void layer_pick(bfloat16* __restrict piece, bfloat16* __restrict queries, int32_t index,
                int32_t pair, int32_t sweeps, int32_t size, int32_t units) {
  for (int32_t sweep = 0; sweep < sweeps; ++sweep) {
    const int32_t unit = kPairs * sweep + pair;
    const int32_t first = (unit < units ? unit : units - 1) * size;
    for (int32_t i = 0; i < kObject; i += kPiece) {
      const int32_t at = kObject * index + i - first;
      if (at >= 0 && at < size) copy_bf16(piece + i, queries + sweep * size + at, kPiece);
    }
  }
}

// q = the queries of a sweep.
void layer_select(bfloat16* __restrict queries, bfloat16* __restrict q, int32_t sweep,
                  int32_t size) {
  const bfloat16* from = queries + sweep * size;
  LOOP_TRIPS(size / 32, 2, 64)
  for (int32_t i = 0; i < size; i += 32) aie::store_v(q + i, aie::load_v<32>(from + i));
}

}  // extern "C"
