// What it takes to run a claimed node: which op, its attributes, where its inputs come from, and
// where its weights lie. Made from a node of the model, or read back from an EPContext node.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ort/ep/claims.h"
#include "q4nx/layout.h"

namespace ort_aie::ep {

// Provider options by name, as the user gave them.
using Settings = std::map<std::string, std::string>;

struct Recipe {
  // Bytes [offset, offset + size) of a context file; size 0: none.
  struct Span {
    int64_t offset = 0, size = 0;
  };
  // An input that the fused node does not have, because ONNX Runtime no longer keeps it.
  struct Constant {
    DataType type = DataType::kOther;
    Shape shape;
    Span span;
  };
  static constexpr int kAbsent = -1;

  Kind kind;
  std::map<std::string, int64_t> ints;
  std::map<std::string, float> floats;
  std::map<std::string, std::string> strings;
  // By position of the op: the position among the fused node's inputs or outputs, or kAbsent.
  std::vector<int> inputs, outputs;
  Span weights;
  std::map<int, Constant> constants;  // by position of the op
};

// The node's input at a position of the op that it is claimed for; absent for the weights.
const Value& InputAt(const Claim& claim, int position);

// The recipe of a claimed node; positions are those of `fused`.
Recipe MakeRecipe(const Claim& claim, const Node& fused);

std::string ToText(const Recipe& recipe);
// Of a node with so many inputs and outputs. Throws Error for a text that ToText of this format did
// not write: whoever has the recipe need not doubt its op, attributes, positions and sizes, only
// whether its spans are in the file.
Recipe RecipeFrom(const std::string& text, size_t inputs, size_t outputs);

// Of the weights, of an op that has some.
WeightForm FormOf(const Recipe& recipe);

// A recipe as an op of the custom-op door asks about its node.
class RecipeInfo final : public NodeInfo {
 public:
  RecipeInfo(const Recipe& recipe, Tensor weights)
      : recipe_(recipe), weights_(std::move(weights)) {}
  int64_t Int(const char* attribute, int64_t fallback) const override;
  float Float(const char* attribute, float fallback) const override;
  std::string String(const char* attribute) const override;
  Tensor ConstantInput(size_t index) const override;

 private:
  const Recipe& recipe_;
  const Tensor weights_;
};

}  // namespace ort_aie::ep
