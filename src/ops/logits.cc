#include "ops/logits.h"

#include <algorithm>

namespace ort_aie {
namespace {

thread_local int64_t logits_to_keep = 0;

}  // namespace

void KeepLogits(int64_t tokens) { logits_to_keep = std::max<int64_t>(0, tokens); }
int64_t LogitsToKeep() { return logits_to_keep; }

}  // namespace ort_aie
