#include "npu/expression.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/error.h"

namespace ort_aie::npu {
namespace {

constexpr std::array<std::pair<std::string_view, Operator>, 11> kOperators{{
    {"+", Operator::kAdd},
    {"-", Operator::kSubtract},
    {"*", Operator::kMultiply},
    {"//", Operator::kDivide},
    {"%", Operator::kModulo},
    {"ceil", Operator::kCeil},
    {"min", Operator::kMin},
    {"max", Operator::kMax},
    {"<", Operator::kLess},
    {"<=", Operator::kAtMost},
    {"==", Operator::kEqual},
}};

int64_t FloorDivide(int64_t a, int64_t b) {
  Require(b > 0, "division by ", b, ": divisors must be positive");
  return a / b - (a % b < 0 ? 1 : 0);
}

int64_t Apply(Operator op, int64_t a, int64_t b) {
  switch (op) {
    case Operator::kAdd:
      return CheckedAdd(a, b);
    case Operator::kSubtract: {
      int64_t difference;
      Require(!__builtin_sub_overflow(a, b, &difference), a, " - ", b, " overflows 64 bits");
      return difference;
    }
    case Operator::kMultiply:
      return CheckedMultiply(a, b);
    case Operator::kDivide:
      return FloorDivide(a, b);
    case Operator::kModulo:
      return a - FloorDivide(a, b) * b;
    case Operator::kCeil: {
      const int64_t floor = FloorDivide(a, b);
      return floor + (floor * b != a ? 1 : 0);
    }
    case Operator::kMin:
      return std::min(a, b);
    case Operator::kMax:
      return std::max(a, b);
    case Operator::kLess:
      return a < b;
    case Operator::kAtMost:
      return a <= b;
    case Operator::kEqual:
      return a == b;
  }
  Fail(ErrorCode::kRuntime, "operator out of range");
}

}  // namespace

Operator OperatorNamed(std::string_view name) {
  std::string known;
  for (const auto& [spelling, op] : kOperators) {
    if (name == spelling) return op;
    known.append(known.empty() ? "" : " ").append(spelling);
  }
  Fail(ErrorCode::kInvalidArgument, "unknown operator \"", name, "\", expected one of ", known);
}

int64_t CheckedAdd(int64_t a, int64_t b) {
  int64_t sum;
  Require(!__builtin_add_overflow(a, b, &sum), a, " + ", b, " overflows 64 bits");
  return sum;
}

int64_t CheckedMultiply(int64_t a, int64_t b) {
  int64_t product;
  Require(!__builtin_mul_overflow(a, b, &product), a, " * ", b, " overflows 64 bits");
  return product;
}

Expression Expression::Constant(int64_t value) {
  Expression e;
  e.postfix_ = {{Kind::kConstant, Operator::kAdd, value}};
  return e;
}

Expression Expression::Symbol(int slot) {
  Expression e;
  e.postfix_ = {{Kind::kSymbol, Operator::kAdd, slot}};
  return e;
}

Expression Expression::Binary(Operator op, Expression left, Expression right) {
  Expression e = std::move(left);
  e.postfix_.insert(e.postfix_.end(), right.postfix_.begin(), right.postfix_.end());
  e.postfix_.push_back({Kind::kBinary, op, 0});
  return e;
}

int64_t Expression::Evaluate(std::span<const int64_t> frame) const {
  // Most expressions are a few nodes; the stack never grows beyond their number.
  std::array<int64_t, 16> local{};
  std::vector<int64_t> large(postfix_.size() > local.size() ? postfix_.size() : 0);
  int64_t* stack = large.empty() ? local.data() : large.data();
  size_t top = 0;
  for (const Node& node : postfix_) {
    switch (node.kind) {
      case Kind::kConstant:
        stack[top++] = node.value;
        break;
      case Kind::kSymbol:
        stack[top++] = frame[static_cast<size_t>(node.value)];
        break;
      case Kind::kBinary:
        --top;
        stack[top - 1] = Apply(node.op, stack[top - 1], stack[top]);
        break;
    }
  }
  return stack[0];
}

}  // namespace ort_aie::npu
