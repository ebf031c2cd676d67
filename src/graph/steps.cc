#include "graph/steps.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "base/error.h"

namespace ort_aie::graph {

Steps::Steps(Graph graph, std::vector<Item> items)
    : graph_(std::move(graph)), items_(std::move(items)) {
  Index();
}

void Steps::Index() {
  producer_.assign(graph_.values.size(), kAbsent);
  readers_.assign(graph_.values.size(), {});
  for (size_t i = 0; i < items_.size(); ++i) {
    for (const int value : items_[i].step.reads) {
      if (value != kAbsent) readers_[static_cast<size_t>(value)].push_back(static_cast<int>(i));
    }
    for (const int value : items_[i].step.writes) {
      if (value != kAbsent) producer_[static_cast<size_t>(value)] = static_cast<int>(i);
    }
  }
}

const Node* Steps::node(const Item* item) const {
  if (item == nullptr || item->is_step()) return nullptr;
  return &graph_.nodes[static_cast<size_t>(item->nodes[0])];
}

const Item* Steps::Producer(int value) const {
  const int item = value == kAbsent ? kAbsent : producer_[static_cast<size_t>(value)];
  return item == kAbsent ? nullptr : &items_[static_cast<size_t>(item)];
}

const Item* Steps::OnlyReader(int value) const {
  if (value == kAbsent || graph_.value(value).wanted) return nullptr;
  const std::vector<int>& readers = readers_[static_cast<size_t>(value)];
  return readers.size() == 1 ? &items_[static_cast<size_t>(readers[0])] : nullptr;
}

size_t Steps::TimesRead(int value) const {
  if (value == kAbsent) return 0;
  return readers_[static_cast<size_t>(value)].size() + (graph_.value(value).wanted ? 1 : 0);
}

bool Steps::IsRead(int value) const { return TimesRead(value) != 0; }

bool Steps::IsReadOutside(int value, const std::set<int>& items) const {
  if (value == kAbsent) return false;
  const std::vector<int>& readers = readers_[static_cast<size_t>(value)];
  return graph_.value(value).wanted ||
         std::ranges::any_of(readers, [&](int reader) { return !items.contains(reader); });
}

int Steps::Read(const Item& item, size_t position) {
  return position < item.step.reads.size() ? item.step.reads[position] : kAbsent;
}

int Steps::Written(const Item& item, size_t position) {
  return position < item.step.writes.size() ? item.step.writes[position] : kAbsent;
}

void Steps::Fuse(const Item* into, Recipe::Step step, const std::vector<const Item*>& taken_in) {
  const auto index = [&](const Item* item) { return static_cast<size_t>(item - items_.data()); };
  Item& target = items_[index(into)];
  std::vector<bool> gone(items_.size(), false);
  for (const Item* item : taken_in) {
    gone[index(item)] = true;
    target.nodes.insert(target.nodes.end(), item->nodes.begin(), item->nodes.end());
  }
  target.step = std::move(step);
  target.why_not.clear();
  target.apart.clear();
  std::vector<Item> left;
  left.reserve(items_.size());
  for (size_t i = 0; i < items_.size(); ++i) {
    if (!gone[i]) left.push_back(std::move(items_[i]));
  }
  items_ = std::move(left);
  Index();
}

void Steps::SetApart(const Item* item, std::string what) {
  items_[static_cast<size_t>(item - items_.data())].apart = std::move(what);
}

void Steps::Sort() {
  std::vector<int> missing(items_.size(), 0);  // inputs that are not there yet
  for (size_t i = 0; i < items_.size(); ++i) {
    for (const int value : items_[i].step.reads) {
      if (value != kAbsent && producer_[static_cast<size_t>(value)] != kAbsent) ++missing[i];
    }
  }
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;  // in their old order
  for (size_t i = 0; i < items_.size(); ++i) {
    if (missing[i] == 0) ready.push(i);
  }
  std::vector<Item> sorted;
  sorted.reserve(items_.size());
  while (!ready.empty()) {
    const size_t next = ready.top();
    ready.pop();
    for (const int value : items_[next].step.writes) {
      if (value == kAbsent) continue;
      for (const int reader : readers_[static_cast<size_t>(value)]) {
        if (--missing[static_cast<size_t>(reader)] == 0) ready.push(static_cast<size_t>(reader));
      }
    }
    sorted.push_back(std::move(items_[next]));
  }
  Require(sorted.size() == items_.size(), "the graph has a cycle");
  items_ = std::move(sorted);
  Index();
}

}  // namespace ort_aie::graph
