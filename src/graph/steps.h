// The graph as steps, with what is not ours between them: what fusions work on.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "ops/recipe.h"

namespace ort_aie::graph {

// A step, with the nodes that it takes the place of; or one node that stays as it is.
struct Item {
  std::vector<int> nodes;  // of the graph; the first is the one that it is named after
  // Its reads and writes are values of the graph. Of no op where the node stays.
  Recipe::Step step = {};
  std::string why_not = {};  // why it stays, of a node that might not have; often empty

  bool is_step() const { return !step.op.empty(); }
  bool Is(std::string_view op) const { return step.op == op; }
};

class Steps {
 public:
  // An item for each node. A node that is not ours has its inputs and outputs as reads and writes.
  Steps(Graph graph, std::vector<Item> items);

  const Graph& graph() const { return graph_; }
  const std::vector<Item>& items() const { return items_; }

  // --- what stands around an item; pointers hold until the next change ---

  const Value& value(int index) const { return graph_.value(index); }
  // The node of an item that stays as it is; null of a step, and of no item.
  const Node* node(const Item* item) const;
  // Who writes a value: null for inputs of the graph and constants.
  const Item* Producer(int value) const;
  // The one item that reads a value, once, which nobody else wants; else null.
  const Item* OnlyReader(int value) const;
  // How often items read it, and once more where somebody wants it outside.
  size_t TimesRead(int value) const;
  // Whether anybody reads it, or wants it outside.
  bool IsRead(int value) const;
  // Whether anybody but these items does.
  bool IsReadOutside(int value, const std::set<int>& items) const;
  // The value at a position, or kAbsent.
  static int Read(const Item& item, size_t position);
  static int Written(const Item& item, size_t position);

  // --- changes ---

  // Puts `step` in the place of `into`, and of those that it takes in, which go.
  void Fuse(const Item* into, Recipe::Step step, const std::vector<const Item*>& taken_in);
  // In topological order again, near to what it was.
  void Sort();

 private:
  void Index();

  Graph graph_;
  std::vector<Item> items_;
  std::vector<int> producer_;              // by value: an item, or kAbsent
  std::vector<std::vector<int>> readers_;  // by value: items, one for each time they read it
};

}  // namespace ort_aie::graph
