// Integer expressions of a sequence: constants, symbols (as slots of a frame) and operators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ort_aie::npu {

enum class Operator {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kModulo,
  kCeil,
  kMin,
  kMax,
  kLess,
  kAtMost,
  kEqual
};

// Throws Error for an unknown name.
Operator OperatorNamed(std::string_view name);

// 64-bit arithmetic that raises instead of overflowing.
int64_t CheckedAdd(int64_t a, int64_t b);
int64_t CheckedMultiply(int64_t a, int64_t b);

// Division and modulo round towards minus infinity and need a positive divisor. ceil rounds up.
// Comparisons give 1 or 0.
class Expression {
 public:
  static Expression Constant(int64_t value);
  static Expression Symbol(int slot);
  static Expression Binary(Operator op, Expression left, Expression right);

  // Its constants, symbols and operators: what it costs to evaluate.
  size_t size() const { return postfix_.size(); }
  // `frame` holds a value for every slot that the expression names.
  int64_t Evaluate(std::span<const int64_t> frame) const;

 private:
  enum class Kind { kConstant, kSymbol, kBinary };
  struct Node {
    Kind kind;
    Operator op;
    int64_t value;  // of a constant; the slot of a symbol
  };
  std::vector<Node> postfix_;
};

}  // namespace ort_aie::npu
