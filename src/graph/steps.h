// The graph as steps, with the other nodes between them. Fusions work on this.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "ops/recipe.h"

namespace ort_aie::graph {

// A step, with the nodes that it replaces; or one node that stays as it is.
struct Item {
  std::vector<int> nodes;  // of the graph; the item is named after the first
  // Its reads and writes are values of the graph. If the node stays, `op` is empty.
  Recipe::Step step = {};
  std::string why_not = {};  // why the node stays, if it might have become a step; often empty
  bool malformed = false;    // why_not says that no runtime could run the node
  std::string apart = {};  // what it did not take in, because forms of weights differ; often empty

  bool is_step() const { return !step.op.empty(); }
  bool Is(std::string_view op) const { return step.op == op; }
};

class Steps {
 public:
  // An item for each node. A node that stays has its inputs and outputs as reads and writes.
  Steps(Graph graph, std::vector<Item> items);

  const Graph& graph() const { return graph_; }
  const std::vector<Item>& items() const { return items_; }

  // --- the neighbours of an item; pointers are valid until the next change ---

  const Value& value(int index) const { return graph_.value(index); }
  // The node of an item that stays as it is; null for a step, and for a null item.
  const Node* node(const Item* item) const;
  // The item that writes a value: null for inputs of the graph and constants.
  const Item* Producer(int value) const;
  // The only item that reads a value, if it reads it once and nothing else wants it; else null.
  const Item* OnlyReader(int value) const;
  // How often items read it, plus one if it is wanted outside.
  size_t TimesRead(int value) const;
  // Whether an item reads it, or it is wanted outside.
  bool IsRead(int value) const;
  // The same, for everything but these items.
  bool IsReadOutside(int value, const std::set<int>& items) const;
  // The value at a position, or kAbsent.
  static int Read(const Item& item, size_t position);
  static int Written(const Item& item, size_t position);

  // --- changes ---

  // Puts `step` in place of `into`, and removes the items `taken_in`.
  void Fuse(const Item* into, Recipe::Step step, const std::vector<const Item*>& taken_in);
  void SetApart(const Item* item, std::string what);
  // Restores topological order, close to the current order.
  void Sort();

 private:
  void Index();

  Graph graph_;
  std::vector<Item> items_;
  std::vector<int> producer_;              // by value: an item, or kAbsent
  std::vector<std::vector<int>> readers_;  // by value: items, one for each time they read it
};

}  // namespace ort_aie::graph
