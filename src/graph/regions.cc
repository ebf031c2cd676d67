#include "graph/regions.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "graph/claims.h"

namespace ort_aie::graph {
namespace {

// A set of regions, by number. Regions made after the set are not in it.
using Regions = std::vector<bool>;

void Add(const Regions& from, Regions& to) {
  to.resize(std::max(from.size(), to.size()));
  for (size_t r = 0; r < from.size(); ++r) {
    if (from[r]) to[r] = true;
  }
}

bool Has(const Regions& regions, size_t region) {
  return region < regions.size() && regions[region];
}

// Joins items in topological order. Each joins the youngest region that it does not depend on
// through items outside of that region. A region is computed as a whole, so what depends on a part
// of it depends on everything that any part of it depends on, including the items that join later.
class Joining {
 public:
  Joining(const Steps& steps, const std::vector<bool>& may)
      : region(steps.items().size(), kAbsent), next_(steps.items().size()) {
    for (size_t i = 0; i < region.size(); ++i) Join(steps, i, may[i]);
  }

  std::vector<int> region;  // by item, or kAbsent

 private:
  void Join(const Steps& steps, size_t i, bool may) {
    Regions next;     // regions that it reads, directly or through nodes outside only
    Regions blocked;  // regions on which it depends through something outside of them
    for (const int value : steps.items()[i].step.reads) {
      const Item* producer = steps.Producer(value);
      if (producer == nullptr) continue;
      const auto p = static_cast<size_t>(producer - steps.items().data());
      if (region[p] == kAbsent) Add(next_[p], blocked);
      Add(next_[p], next);
    }
    for (size_t r = 0; r < next.size(); ++r) {
      if (next[r]) Add(before_[r], blocked);
    }
    if (!may) {
      next_[i] = std::move(next);
      return;
    }
    int mine = static_cast<int>(before_.size()) - 1;
    while (mine >= 0 && Has(blocked, static_cast<size_t>(mine))) --mine;
    if (mine < 0) {
      mine = static_cast<int>(before_.size());
      before_.emplace_back();
    }
    region[i] = mine;
    next_[i].assign(static_cast<size_t>(mine) + 1, false);
    next_[i].back() = true;
    Add(next, blocked);
    Depend(static_cast<size_t>(mine), blocked);
  }

  // Adds dependencies to a region, and to all regions that depend on it.
  void Depend(size_t on, Regions needed) {
    if (on < needed.size()) needed[on] = false;
    Add(needed, before_[on]);
    for (Regions& before : before_) {
      if (Has(before, on)) Add(needed, before);
    }
  }

  std::vector<Regions> before_;  // by region: every region that it depends on
  std::vector<Regions> next_;    // by item: its own region; for one outside, those just before
};

// The connected parts of regions: a number for each item, or kAbsent.
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
          // Reading the same value from outside does not connect two steps.
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

// Sets `may` to false for items that are not connected to an anchor of their region. Returns
// whether there are any.
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

// Leaves out casts of values that a node outside gives, and casts of these casts. ONNX Runtime
// computes many float16 nodes in float. It drops the casts that it puts around them together with
// those of the model, but it does not see those inside a region: values would be rounded to float16
// on the way.
void DropCastsForOthers(const Steps& steps, std::vector<bool>& may) {
  const std::vector<Item>& items = steps.items();
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].Is("Cast")) continue;
    const Item* producer = steps.Producer(items[i].step.reads[0]);
    if (producer != nullptr && !may[static_cast<size_t>(producer - items.data())]) may[i] = false;
  }
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
  for (size_t i = 0; i < items.size(); ++i) may[i] = items[i].is_step();
  std::vector<int> region;
  do {  // idle items may have kept others out of a region
    DropCastsForOthers(steps, may);
    region = Joining(steps, may).region;
  } while (DropIdle(steps, region, may));
  std::map<std::pair<int, int>, std::vector<int>> members;  // by region, and part of it
  std::map<int, int> attentions;                            // so far, by region
  for (size_t i = 0; i < items.size(); ++i) {
    if (region[i] == kAbsent) continue;
    int part = 0;
    if (grouping == Grouping::kStepByStep) part = static_cast<int>(i);
    if (grouping == Grouping::kLayers) {
      int& its = attentions[region[i]];
      if (items[i].Is("FlowAttention")) ++its;
      part = std::max(its, 1);
    }
    members[{region[i], part}].push_back(static_cast<int>(i));
  }
  std::vector<Region> regions;
  for (auto& [key, list] : members) regions.push_back(MakeRegion(steps, std::move(list)));
  return regions;
}

void KeepFloat16(const Steps& steps, Region& region) {
  const auto is_other = [&](int value) { return steps.value(value).type != kOnnxFloat16; };
  const auto other = std::ranges::find_if(region.inputs, is_other);
  if (region.recipe.steps.size() == 1 || other == region.inputs.end()) return;
  const auto place = static_cast<int>(other - region.inputs.begin());
  std::swap(region.inputs.front(), *other);
  for (Recipe::Step& step : region.recipe.steps) {
    for (int& value : step.reads) value = value == 0 ? place : value == place ? 0 : value;
  }
}

}  // namespace ort_aie::graph
