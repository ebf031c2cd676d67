#include "graph/fusions/match.h"

#include <algorithm>

namespace ort_aie::graph {
namespace {

class Search {
 public:
  Search(const Steps& steps, std::span<const Line> lines) : steps_(steps), lines_(lines) {}

  std::optional<Match> From(const Item* last) {
    found_.values[lines_[0].result] = Steps::Written(*last, 0);
    if (!Rest(0)) return std::nullopt;
    found_.items.erase(found_.items.begin());
    return std::move(found_);
  }

 private:
  bool Rest(size_t place) {
    if (place == lines_.size()) return IsClosed();
    const Line& line = lines_[place];
    const int result = found_.value(line.result);
    const Item* item = steps_.Producer(result);
    const Node* node = steps_.node(item);
    const bool is_op = item != nullptr && Steps::Written(*item, line.output) == result &&
                       (item->Is(line.op) || (node != nullptr && node->Is("", line.op)));
    if (!is_op) return line.optional && Bind(line.inputs[0], result) && Rest(place + 1);
    found_.items.push_back(item);
    const bool either_order = line.op == "Add" || line.op == "Mul";
    for (const size_t first : {size_t{0}, size_t{1}}) {
      if (first > 0 && !either_order) break;
      const auto before = found_.values;
      bool fits = true;
      for (size_t i = 0; i < line.inputs.size(); ++i) {
        fits = fits && Bind(line.inputs[i], Steps::Read(*item, either_order ? i ^ first : i));
      }
      if (fits && Rest(place + 1)) return true;
      found_.values = before;
    }
    found_.items.pop_back();
    return false;
  }

  bool Bind(std::string_view name, int value) {
    return found_.values.try_emplace(name, value).first->second == value;
  }

  bool IsClosed() const {
    std::set<int> inside;
    for (const Item* item : found_.items) {
      inside.insert(static_cast<int>(item - steps_.items().data()));
    }
    return std::ranges::all_of(found_.items, [&](const Item* item) {
      return item == found_.items[0] || std::ranges::none_of(item->step.writes, [&](int value) {
               return steps_.IsReadOutside(value, inside);
             });
    });
  }

  const Steps& steps_;
  const std::span<const Line> lines_;
  Match found_;
};

}  // namespace

std::optional<Match> FindBehind(const Steps& steps, const Item* last, std::span<const Line> lines) {
  return Search(steps, lines).From(last);
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
