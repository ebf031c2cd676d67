// The computation of a region of a model: steps, each an op of the domain aie, and the values
// between them. An aie.Plan node holds one as text, and so does an EPContext node.
//
// Values are numbered: first the node's inputs, then the constants that are stored beside the node,
// then the results of steps in any order. Each item is one line, and blanks separate words. In
// arbitrary text, blanks, line ends and % are written as %20 and so on:
//
//   recipe 1
//   inputs 3                                      values 0, 1, 2 are the node's inputs
//   constant 10 4096 65536 8192 4                 value 3: type, offset, bytes, dimensions
//   step Q4NXMatMul /model/layers.0/attn/q_proj   the op, and the node of the source
//   int K 2048
//   float norm_epsilon 0x1.4f8b58p-17
//   string activation silu
//   reads 0 1 -1 2                                its inputs by position, -1 for an absent one
//   writes 4
//   outputs 4                                     the node's outputs
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/op.h"

namespace ort_aie {

inline constexpr int kRecipeFormat = 1;
// A recipe has the largest format of its steps (ops/format.h), so that an older library refuses it.
inline constexpr int kLastRecipeFormat = 3;

struct Recipe {
  static constexpr int kAbsent = -1;

  // Bytes [offset, offset + size) of a file.
  struct FileRange {
    int64_t offset = 0, size = 0;
  };
  struct Constant {
    DataType type = DataType::kOther;
    Shape shape;
    FileRange range;
  };
  struct Step {
    std::string op, name;
    std::map<std::string, int64_t> ints = {};
    std::map<std::string, float> floats = {};
    std::map<std::string, std::string> strings = {};
    std::vector<int> reads = {}, writes = {};  // values, by position in the op, or kAbsent
  };

  int inputs = 0;
  std::vector<Constant> constants = {};
  std::vector<Step> steps = {};
  std::vector<int> outputs = {};  // values that steps write, or kAbsent if an output is left out

  bool IsInput(int value) const { return value < inputs; }
  // The value's place in `constants`, or kAbsent.
  int ConstantOf(int value) const {
    const int at = value - inputs;
    return at >= 0 && at < static_cast<int>(constants.size()) ? at : kAbsent;
  }
  // One more than the largest value.
  int values() const;
};

std::string ToText(const Recipe& recipe);

// Throws Error, saying what is wrong, for a text that ToText of this format did not write. The ops,
// attributes and values of the result are valid, and constants have as many bytes as their types
// and shapes need. Not checked: whether ranges are inside their file, and whether the data in them
// fit.
Recipe RecipeFrom(const std::string& text);
// For an aie.Plan node, which has all of the recipe's constants as inputs, and all of its outputs.
Recipe PlanRecipeFrom(const std::string& text);

// A step as the node of its op. `constants` holds what is known of the step's inputs, by position.
class StepInfo final : public NodeInfo {
 public:
  StepInfo(const Recipe::Step& step, std::span<const Tensor> constants)
      : step_(step), constants_(constants) {}
  int64_t Int(const char* attribute, int64_t fallback) const override;
  float Float(const char* attribute, float fallback) const override;
  std::string String(const char* attribute) const override;
  Tensor ConstantInput(size_t index) const override;

 private:
  const Recipe::Step& step_;
  const std::span<const Tensor> constants_;
};

// Calls set(value, its type and shape) for each value that a step writes. known(value) may be
// absent.
void InferStep(const Recipe::Step& step,
               const std::function<std::optional<ShapeContext::Value>(int)>& known,
               const std::function<void(int, const ShapeContext::Value&)>& set);

// Types and shapes of all values of the recipe, from those of its inputs; of type 0 where they
// follow from an input without one. Throws Error if a value has more dimensions than any model's: a
// chain of gathers would take the square of its length.
std::vector<ShapeContext::Value> InferValues(
    const Recipe& recipe, std::span<const std::optional<ShapeContext::Value>> inputs);

}  // namespace ort_aie
