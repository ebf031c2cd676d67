#include "ops/logits.h"

#include <algorithm>
#include <utility>

namespace ort_aie {
namespace {

thread_local int64_t logits_to_keep = 0;

}  // namespace

int64_t KeepLogits(int64_t tokens) {
  return std::exchange(logits_to_keep, std::max<int64_t>(0, tokens));
}
int64_t LogitsToKeep() { return logits_to_keep; }

}  // namespace ort_aie
