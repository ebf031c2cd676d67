#include "graph/fusions/match.h"

namespace ort_aie::graph {

const Item* MadeBy(const Steps& steps, int value) {
  const Item* item = steps.Producer(value);
  return item != nullptr && Steps::Written(*item, 0) == value ? item : nullptr;
}

std::optional<std::pair<int, int>> Operands(const Steps& steps, const Item* item,
                                            std::string_view op) {
  if (item == nullptr) return std::nullopt;
  const Node* node = steps.node(item);
  if (!item->Is(op) && (node == nullptr || !node->Is("", op))) return std::nullopt;
  return std::pair(Steps::Read(*item, 0), Steps::Read(*item, 1));
}

}  // namespace ort_aie::graph
