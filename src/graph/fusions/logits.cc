// The projection that computes the model's logits, so that a call may ask for those of its last
// tokens alone (ops/logits.h).
//
// Before: logits = P(A, W), or with operators of one element each between them, such as a cap
// After:  the same, with attribute logits = 1 of P
#include <algorithm>
#include <array>

#include "graph/fusions.h"
#include "graph/fusions/match.h"

namespace ort_aie::graph {
namespace {

constexpr std::string_view kLogits = "logits";

// Whether each element of the result is computed from one element of `value`.
bool IsElementwise(const Steps& steps, const Item& item, int value) {
  static constexpr std::array<std::string_view, 9> kNodes = {
      "Add", "Cast", "Clip", "Div", "Identity", "Mul", "Neg", "Sub", "Tanh"};
  static constexpr std::array<std::string_view, 4> kSteps = {"Add", "Mul", "Cast", "Activation"};
  const Node* node = steps.node(&item);
  const bool known = node == nullptr ? std::ranges::find(kSteps, item.step.op) != kSteps.end()
                                     : node->domain.empty() &&
                                           std::ranges::find(kNodes, node->op_type) != kNodes.end();
  return known && std::ranges::all_of(item.step.reads, [&](int read) {
           if (read == value || read == kAbsent) return true;
           const Tensor& constant = steps.value(read).constant;
           return constant.present &&
                  std::ranges::all_of(constant.shape, [](int64_t dim) { return dim == 1; });
         });
}

bool BecomesLogits(const Steps& steps, int value) {
  while (!steps.value(value).wanted) {
    const Item* reader = steps.OnlyReader(value);
    if (reader == nullptr || !IsElementwise(steps, *reader, value)) return false;
    value = Steps::Written(*reader, 0);
    if (value == kAbsent) return false;
  }
  return steps.value(value).logits && steps.TimesRead(value) == 1;
}

}  // namespace

void MarkLogits(Steps& steps) {
  FuseEach(steps, [&](const Item* item) {
    if (!IsMatMul(item) || Attributes(*item).Int(kLogits.data(), 0) != 0) return false;
    const int sum = Steps::Written(*item, 1);
    if ((sum != kAbsent && steps.IsRead(sum)) || !BecomesLogits(steps, Steps::Written(*item, 0))) {
      return false;
    }
    Recipe::Step step = item->step;
    step.ints[std::string(kLogits)] = 1;
    steps.Fuse(item, std::move(step), {});
    return false;
  });
}

}  // namespace ort_aie::graph
