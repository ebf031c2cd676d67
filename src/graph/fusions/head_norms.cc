// RMS norms of the heads of queries and keys, and of values -> inputs of FlowAttention.
//
// Before: query = Reshape(RMSNorm(Reshape(q, (..., D)), q_weight), shape of q), key likewise, and
//         FlowAttention(query, key, value, ...)
// After:  FlowAttention(q, k, value, ..., q_norm_weight, k_norm_weight)
//
// The model builder writes Qwen3 and Gemma 3 like this, and Gemma 4 also norms of values.
#include <algorithm>
#include <optional>

#include "base/size.h"
#include "graph/fusions/heads.h"
#include "graph/fusions/match.h"
#include "ops/flow_attention.h"

namespace ort_aie::graph {
namespace {

using Input = FlowAttention::Input;

// The norm of each head of `source`.
struct HeadNorm {
  int source, weight;
  float epsilon;
  const Item *heads, *norm, *flat;  // in the order in which they are computed
};

const Item* OnlyResultOf(const Steps& steps, int value) {
  return steps.OnlyReader(value) != nullptr ? MadeBy(steps, value) : nullptr;
}

// The Reshape whose result `value` is, if it has a single reader.
const Item* ReshapeBefore(const Steps& steps, int value) {
  const Item* item = OnlyResultOf(steps, value);
  const Node* node = steps.node(item);
  return node != nullptr && node->Is("", "Reshape") ? item : nullptr;
}

// The last dimension of a Reshape's result, or 0 if it is not known.
int64_t LastDim(const Steps& steps, const Item& reshape) {
  const auto& shape = steps.value(Steps::Written(reshape, 0)).shape;
  if (shape && !shape->empty() && shape->back().value > 0) return shape->back().value;
  const auto given = Integers(steps.value(Steps::Read(reshape, 1)));
  return given && !given->empty() ? std::max<int64_t>(given->back(), 0) : 0;
}

// The norm before an input of `attention`. None if it normalises anything but each head by itself.
std::optional<HeadNorm> HeadNormBefore(const Steps& steps, const Item& attention, Input input,
                                       const char* heads_attribute) {
  const int query_or_key = Steps::Read(attention, input);
  const Item* flat = ReshapeBefore(steps, query_or_key);
  if (flat == nullptr) return std::nullopt;
  const Item* norm = OnlyResultOf(steps, Steps::Read(*flat, 0));
  if (norm == nullptr || !norm->Is("RMSNorm") || Steps::Read(*norm, kNormSkip) != kAbsent) {
    return std::nullopt;
  }
  const Item* heads = ReshapeBefore(steps, Steps::Read(*norm, kNormA));
  if (heads == nullptr) return std::nullopt;

  const int source = Steps::Read(*heads, 0), weight = Steps::Read(*norm, kNormScale);
  const int64_t dim = LastDim(steps, *heads);
  const Tensor& scale = steps.value(weight).constant;
  if (dim == 0 || !scale.present || scale.shape != Shape{dim}) return std::nullopt;
  // Rows of `dim` elements are heads if the last dimension of `source` consists of them.
  const auto& shape = steps.value(source).shape;
  if (!shape || shape->size() != 3 ||
      Size(Attributes(attention).Int(heads_attribute, 0)) * dim != shape->back().value ||
      !SameShape(steps.value(source), steps.value(query_or_key))) {
    return std::nullopt;
  }
  return HeadNorm{source, weight, Attributes(*norm).Float("epsilon", 0), heads, norm, flat};
}

// The epsilon of the norms that an attention has already, if any.
std::optional<float> EpsilonOf(const Item& attention) {
  for (const Input input : {Input::kQNormWeight, Input::kKNormWeight, Input::kVNormWeight}) {
    if (Steps::Read(attention, input) == kAbsent) continue;
    return Attributes(attention).Float("qk_norm_epsilon", FlowAttention::kDefaultEpsilon);
  }
  return std::nullopt;
}

// The attention with the norm's weight at `weight`, in place of the norm before `input`.
void Absorb(const HeadNorm& norm, Input input, Input weight, Recipe::Step& step) {
  step.reads.resize(std::max<size_t>(step.reads.size(), size_t{weight} + 1), kAbsent);
  step.reads[input] = norm.source;
  step.reads[weight] = norm.weight;
  step.floats.erase("qk_norm_epsilon");
  if (norm.epsilon != FlowAttention::kDefaultEpsilon) {
    step.floats["qk_norm_epsilon"] = norm.epsilon;
  }
}

}  // namespace

bool FuseNormsOfHeads(Steps& steps, const Item* attention) {
  if (Steps::Read(*attention, Input::kQNormWeight) != kAbsent ||
      Steps::Read(*attention, Input::kKNormWeight) != kAbsent) {
    return false;
  }
  const auto q = HeadNormBefore(steps, *attention, Input::kQuery, "num_heads");
  const auto k = HeadNormBefore(steps, *attention, Input::kKey, "kv_num_heads");
  if (!q || !k || q->epsilon != k->epsilon ||
      EpsilonOf(*attention).value_or(q->epsilon) != q->epsilon ||
      steps.value(q->weight).constant.shape != steps.value(k->weight).constant.shape) {
    return false;
  }
  Recipe::Step step = attention->step;
  Absorb(*q, Input::kQuery, Input::kQNormWeight, step);
  Absorb(*k, Input::kKey, Input::kKNormWeight, step);
  steps.Fuse(attention, std::move(step), {q->flat, q->norm, q->heads, k->flat, k->norm, k->heads});
  return true;
}

bool FuseNormOfValues(Steps& steps, const Item* attention) {
  if (Steps::Read(*attention, Input::kVNormWeight) != kAbsent) return false;
  const auto v = HeadNormBefore(steps, *attention, Input::kValue, "kv_num_heads");
  if (!v || EpsilonOf(*attention).value_or(v->epsilon) != v->epsilon) return false;
  Recipe::Step step = attention->step;
  Absorb(*v, Input::kValue, Input::kVNormWeight, step);
  steps.Fuse(attention, std::move(step), {v->flat, v->norm, v->heads});
  return true;
}

}  // namespace ort_aie::graph
