#include "graph/fusions/match.h"

namespace ort_aie::graph {

std::optional<std::vector<int64_t>> Integers(const Value& value) {
  const Tensor& constant = value.constant;
  const bool is_list = constant.type == DataType::kInt64 && constant.shape.size() == 1;
  if (!is_list || constant.data == nullptr) return std::nullopt;
  const auto* first = constant.as<int64_t>();
  return std::vector(first, first + constant.bytes / int64_t{sizeof(int64_t)});
}

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
