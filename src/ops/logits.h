// How many of its last tokens a call computes logits for. The lm_head is the largest projection,
// and who only generates reads the logits of a prompt's last token alone.
//
// Neither a graph's inputs nor ONNX Runtime's run options can say it: an input with a default makes
// ONNX Runtime warn at each start, and operators do not see run options. So the thread that calls
// Run says it, and ONNX Runtime executes nodes on that thread.
#pragma once

#include <cstdint>

namespace ort_aie {

// For later calls on this thread; 0: all tokens. Returns what held before.
int64_t KeepLogits(int64_t tokens);
int64_t LogitsToKeep();

}  // namespace ort_aie
