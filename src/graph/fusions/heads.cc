// What comes between a packed projection and FlowAttention -> inputs of FlowAttention.
//
// Before: q, k, v = Split(qkv), norms and rotations of q, k and v, FlowAttention(q', k', v', ...)
// After:  FlowAttention(qkv, , , ..., cos, sin, position_ids, ..., norms' weights)
//
// Each norm and each rotation writes queries and keys again, and so does the Split. All of them are
// also nodes that would divide a plan.
#include "graph/fusions/heads.h"

#include <algorithm>

#include "graph/fusions.h"
#include "graph/fusions/match.h"
#include "ops/flow_attention.h"

namespace ort_aie::graph {
namespace {

using Input = FlowAttention::Input;

}  // namespace

bool FuseSplit(Steps& steps, const Item* attention) {
  std::vector<int> parts;
  for (const Input input : {Input::kQuery, Input::kKey, Input::kValue}) {
    parts.push_back(Steps::Read(*attention, input));
  }
  const Item* item = steps.Producer(parts[0]);
  const Node* split = steps.node(item);
  // Of (batch, sequence, channels), along the channels.
  const bool is_it = split != nullptr && split->Is("", "Split") && split->outputs == parts &&
                     (split->Int("axis", 0) == -1 || split->Int("axis", 0) == 2);
  const auto read_once = [&](int part) { return steps.TimesRead(part) == 1; };
  if (!is_it || !std::ranges::all_of(parts, read_once)) return false;
  Recipe::Step step = attention->step;
  step.reads[Input::kQuery] = Steps::Read(*item, 0);
  step.reads[Input::kKey] = step.reads[Input::kValue] = kAbsent;
  steps.Fuse(attention, std::move(step), {item});
  return true;
}

void FuseHeads(Steps& steps) {
  FuseEach(steps, [&](const Item* attention) {
    return attention->Is("FlowAttention") &&
           (FuseRotation(steps, attention) || FuseNormsOfHeads(steps, attention) ||
            FuseNormOfValues(steps, attention) || FuseSplit(steps, attention));
  });
}

}  // namespace ort_aie::graph
