// RMS norms, with the residual addition before them -> inputs of the projection that follows.
//
// Before: y, sum? = RMSNorm(A, weight, skip?), or without skip on sum = Add(A, skip), and
//         P(y, W ...)
// After:  P(A, W ..., norm_weight), or Y, sum? = P(A, W ..., norm_weight, skip), P being
//         Q4NXMatMul, GEMM or one of the gated ones
//
// The projection quantises or rounds the normalised rows as it makes them, and does not store them.
// A norm that several projections read stays, so that it is computed once.
#include <algorithm>

#include "base/error.h"
#include "graph/fusions.h"
#include "graph/fusions/match.h"

namespace ort_aie::graph {
namespace {

// The norm that a projection takes in. `sum` is a + skip, if the graph has a value for it.
struct Norm {
  int a, weight, skip = kAbsent, sum = kAbsent;
  std::vector<const Item*> items;
};

Norm NormOf(const Item& item) {
  return {Steps::Read(item, kNormA),
          Steps::Read(item, kNormScale),
          Steps::Read(item, kNormSkip),
          Steps::Written(item, 1),
          {&item}};
}

// With the addition before it, if both terms have the same shape.
Norm WithResidual(const Steps& steps, const Norm& norm) {
  if (norm.skip != kAbsent) return norm;
  const Item* add = MadeBy(steps, norm.a);
  const auto terms = Operands(steps, add, "Add");
  if (!terms) return norm;
  const Value &a = steps.value(terms->first), &skip = steps.value(terms->second);
  if (!SameShape(a, skip) || a.type == 0 || a.type != skip.type) return norm;
  return {terms->first, norm.weight, terms->second, norm.a, {norm.items[0], add}};
}

// Whether anything but the norm reads the sum. An addition before the norm is fused with it.
bool IsSumRead(const Steps& steps, const Norm& norm) {
  return norm.skip != kAbsent && steps.TimesRead(norm.sum) > norm.items.size() - 1;
}

// Whether the projection can write the sum. It cannot if its other inputs might depend on the sum.
bool CanGive(const Steps& steps, const Item& projection, const Norm& norm) {
  if (!IsSumRead(steps, norm)) return true;
  const auto is_given = [&](int value) {
    return value == kAbsent || steps.value(value).constant || steps.Producer(value) == nullptr;
  };
  const auto& reads = projection.step.reads;
  return is_given(norm.weight) && std::all_of(reads.begin() + kWeights, reads.end(), is_given);
}

// The projection that alone reads `value`, as its activations, and has no norm yet.
const Item* OnlyProjection(const Steps& steps, int value) {
  const Item* item = steps.OnlyReader(value);
  const bool is_it = (IsMatMul(item) || IsGatedMLP(item)) && Steps::Read(*item, kA) == value &&
                     Steps::Read(*item, kNormWeight) == kAbsent &&
                     Steps::Read(*item, kSkip) == kAbsent;
  return is_it ? item : nullptr;
}

bool FuseNorm(Steps& steps, const Item* item) {
  if (!item->Is("RMSNorm")) return false;
  const Item* projection = OnlyProjection(steps, Steps::Written(*item, 0));
  if (projection == nullptr ||
      Attributes(*projection).Int("K", 0) != Attributes(*item).Int("K", 0)) {
    return false;
  }
  const Norm alone = NormOf(*item);
  Norm norm = WithResidual(steps, alone);
  if (!CanGive(steps, *projection, norm)) norm = alone;
  if (!CanGive(steps, *projection, norm)) return false;

  Recipe::Step step = projection->step;
  const size_t inputs = norm.skip != kAbsent ? kSkip + 1 : kNormWeight + 1;
  step.reads.resize(std::max(step.reads.size(), inputs), kAbsent);
  step.reads[kA] = norm.a;
  step.reads[kNormWeight] = norm.weight;
  step.floats["norm_epsilon"] = Attributes(*item).Float("epsilon", 0);
  if (norm.skip != kAbsent) {
    step.reads[kSkip] = norm.skip;
    step.writes = {Steps::Written(*projection, 0)};
    if (IsSumRead(steps, norm)) step.writes.push_back(norm.sum);
  }
  steps.Fuse(projection, std::move(step), norm.items);
  return true;
}

}  // namespace

void FuseNorms(Steps& steps) {
  FuseEach(steps, [&](const Item* item) { return FuseNorm(steps, item); });
}

}  // namespace ort_aie::graph
