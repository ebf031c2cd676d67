// The gated activation of a decoder layer, on a core that keeps all of the gate (`rows`) while
// up streams past, and puts the output of attention in order before that.
// The numerics of activations are in activations.h.

#include "../common/activations.h"

namespace {

constexpr int32_t kObject = 256;
constexpr int32_t kPiece = 64;
constexpr int32_t kPairs = 4;

template <typename Argument>
void gate(const bfloat16* __restrict x, const bfloat16* __restrict up, bfloat16* __restrict y,
          Argument argument) {
  aie::set_rounding(aie::rounding_mode::conv_even);
  LOOP_TRIPS(kObject / 32, 8, 8)
  for (int32_t i = 0; i < kObject; i += 32) {
    aie::store_v(y + i, gated(aie::load_v<32>(x + i), aie::load_v<32>(up + i), argument));
  }
}

}  // namespace

extern "C" {

// Object `index` of attention's output has a piece of each pair of cores. In sweep s, pair p has
// the `pieces` pieces of unit 4 s + p (layer_queries.cc), or of the last one if there are not so
// many.
void layer_gather(bfloat16* __restrict o, bfloat16* __restrict rows, int32_t index, int32_t pieces,
                  int32_t units) {
  int32_t sweep = 0;
  while (index >= pieces) {
    index -= pieces;
    ++sweep;
  }
  for (int32_t pair = 0; pair < kPairs; ++pair) {
    const int32_t unit = kPairs * sweep + pair;
    const int32_t of = unit < units ? unit : units - 1;
    copy_bf16(o + kPiece * pair, rows + kPiece * (of * pieces + index), kPiece);
  }
}

// out = activation(gate) * up for half a round: gelu 0 SiLU, 1 GELU in its tanh form.
void layer_gate(bfloat16* __restrict rows, bfloat16* __restrict up, bfloat16* __restrict out,
                int32_t index, int32_t half, int32_t gelu) {
  const bfloat16* x = rows + 2 * kObject * index + kObject * half;
  if (gelu) {
    gate(x, up + kObject * half, out, gelu_argument);
  } else {
    gate(x, up + kObject * half, out, silu_argument);
  }
}

}  // extern "C"
