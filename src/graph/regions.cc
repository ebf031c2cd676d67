#include "graph/regions.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "graph/claims.h"

namespace ort_aie::graph {
namespace {

// By item: the region that it is in, or kAbsent. Items in topological order join the youngest
// region that does not reach them by way of an item outside of it.
std::vector<int> Join(const Steps& steps, const std::vector<bool>& may) {
  const std::vector<Item>& items = steps.items();
  std::vector<int> region(items.size(), kAbsent);
  std::vector<std::set<int>> reached_by(items.size());  // regions of items before it, and its own
  int regions = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    std::set<int> blocked;
    for (const int value : items[i].step.reads) {
      const Item* producer = steps.Producer(value);
      if (producer == nullptr) continue;
      const auto p = static_cast<size_t>(producer - items.data());
      reached_by[i].insert(reached_by[p].begin(), reached_by[p].end());
      for (const int r : reached_by[p]) {
        if (r != region[p]) blocked.insert(r);
      }
    }
    if (!may[i]) continue;
    int mine = regions - 1;
    while (mine >= 0 && blocked.contains(mine)) --mine;
    region[i] = mine >= 0 ? mine : regions++;
    reached_by[i].insert(region[i]);
  }
  return region;
}

// Connected parts of regions: by item a number, or kAbsent.
class Parts {
 public:
  Parts(const Steps& steps, const std::vector<int>& region) : parent_(steps.items().size()) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
    const std::vector<Item>& items = steps.items();
    std::map<std::pair<int, int>, size_t>
        seen;  // (region, value) -> an item that reads or writes it
    for (size_t i = 0; i < items.size(); ++i) {
      if (region[i] == kAbsent) continue;
      for (const auto* values : {&items[i].step.reads, &items[i].step.writes}) {
        for (const int value : *values) {
          // What is given from outside does not make two steps one.
          const Item* producer = steps.Producer(value);
          if (producer == nullptr) continue;
          if (region[static_cast<size_t>(producer - items.data())] != region[i]) continue;
          const auto [known, is_new] = seen.try_emplace({region[i], value}, i);
          if (!is_new) parent_[Root(i)] = Root(known->second);
        }
      }
    }
  }
  size_t Root(size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }

 private:
  std::vector<size_t> parent_;
};

// Of what has nothing to do with the anchors of its region: false in `may`. Whether there is any.
bool DropIdle(const Steps& steps, const std::vector<int>& region, std::vector<bool>& may) {
  Parts parts(steps, region);
  std::set<size_t> anchored;
  for (size_t i = 0; i < region.size(); ++i) {
    if (region[i] != kAbsent && IsAnchor(steps.items()[i])) anchored.insert(parts.Root(i));
  }
  bool any = false;
  for (size_t i = 0; i < region.size(); ++i) {
    if (region[i] == kAbsent || anchored.contains(parts.Root(i))) continue;
    may[i] = false;
    any = true;
  }
  return any;
}

// Whether it casts what a node that is no step gives. ONNX Runtime computes many of float16 in
// float and drops the casts that it puts around them together with those of the model, which it
// does not see in a region: values would be rounded to float16 on the way.
bool CastsForOthers(const Steps& steps, const Item& item) {
  if (!item.Is("Cast")) return false;
  const Item* producer = steps.Producer(item.step.reads[0]);
  return producer != nullptr && !producer->is_step();
}

Region MakeRegion(const Steps& steps, std::vector<int> members) {
  Region region;
  region.items = std::move(members);
  const std::vector<Item>& items = steps.items();
  std::set<int> inside;
  for (const int i : region.items) {
    for (const int value : items[static_cast<size_t>(i)].step.writes) inside.insert(value);
  }
  std::vector<int> constants;
  std::set<int> known = inside;
  known.insert(kAbsent);
  for (const int i : region.items) {
    for (const int value : items[static_cast<size_t>(i)].step.reads) {
      if (!known.insert(value).second) continue;
      (steps.value(value).constant ? constants : region.inputs).push_back(value);
    }
  }
  region.constants = constants.size();
  region.inputs.insert(region.inputs.end(), constants.begin(), constants.end());

  const std::set<int> own(region.items.begin(), region.items.end());
  std::map<int, int> number = {{kAbsent, kAbsent}};
  for (const int value : region.inputs) number.emplace(value, static_cast<int>(number.size()) - 1);
  Recipe& recipe = region.recipe;
  recipe.inputs = static_cast<int>(region.inputs.size());
  for (const int i : region.items) {
    Recipe::Step step = items[static_cast<size_t>(i)].step;
    for (int& value : step.reads) value = number.at(value);
    for (int& value : step.writes) {
      if (value == kAbsent) continue;
      if (steps.IsReadOutside(value, own)) region.outputs.push_back(value);
      const int next = static_cast<int>(number.size()) - 1;
      value = number.emplace(value, next).first->second;
    }
    recipe.steps.push_back(std::move(step));
  }
  for (const int value : region.outputs) recipe.outputs.push_back(number.at(value));
  return region;
}

}  // namespace

std::vector<Region> FindRegions(const Steps& steps, Grouping grouping) {
  const std::vector<Item>& items = steps.items();
  std::vector<bool> may(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    may[i] = items[i].is_step() && !CastsForOthers(steps, items[i]);
  }
  std::vector<int> region = Join(steps, may);
  // What is idle may have kept others out of a region.
  while (DropIdle(steps, region, may)) region = Join(steps, may);
  std::map<int, std::vector<int>> members;
  for (size_t i = 0; i < items.size(); ++i) {
    if (region[i] == kAbsent) continue;
    const int key = grouping == Grouping::kRegions ? region[i] : static_cast<int>(i);
    members[key].push_back(static_cast<int>(i));
  }
  std::vector<Region> regions;
  for (auto& [key, list] : members) regions.push_back(MakeRegion(steps, std::move(list)));
  return regions;
}

}  // namespace ort_aie::graph
