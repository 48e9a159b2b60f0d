// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_OPERATORS_H_
#define MILLRACE_OPS_OPERATORS_H_

// Arithmetic on Outputs, as formulas are written:
//
//   Output y = 0.5 * (w.value * x + b.value) / n;
//
// The nodes are named as TensorFlow's Python operators name theirs: add, sub, mul, truediv, Neg.
// `/` is true division: int32 and int64 become double, shorter integers float (FloorDiv and
// TruncateDiv give integers). `+` joins strings.
//
// A number next to an Output becomes a constant of its dtype ("add/y", "mul/x"). An integer dtype
// takes whole numbers in its range only: x + 1.5 with x of int32 is an error.
//
// Where the nodes go: to the home of the left Output (of the right one where the left one has
// none): the graph, name prefix and devices of the scope that the program gave to the builder of
// the Output, or the root for an imported one. So w.value * x is built where the program made w,
// not with the variable on its parameter server. For another place, another name or control
// dependencies call the builder: Add(scope.WithName("sum"), x, y).
//
// x[i] is element i of x's first dimension, from the end where i is negative ("strided_slice").
//
// Comparisons are left to the builders (Less, Equal, ...): a == b asks whether two Outputs are the
// same.
//
// Errors: as of all builders, in the Scope, with the line of the operator. When there is none (both
// Outputs are invalid, or their Scope is gone) the result is an invalid Output, which a Session
// refuses by name.

#include <source_location>
#include <utility>

#include "graph/scope.h"
#include "ops/array/number_or_output.h"

namespace millrace {

// One side of an operator, with the line that has the operator; made implicitly.
class OutputOperand {
 public:
  OutputOperand(Output output,  // NOLINT
                std::source_location where = std::source_location::current())
      : value_(std::move(output)), where_(where) {}
  template <OperandNumber T>
  OutputOperand(T number,  // NOLINT
                std::source_location where = std::source_location::current())
      : value_(number), where_(where) {}

  const NumberOrOutput& value() const { return value_; }
  const std::source_location& where() const { return where_; }

 private:
  NumberOrOutput value_;
  std::source_location where_;
};

namespace operators_internal {

enum class Operator { kAdd, kSub, kMul, kTrueDiv };
Output Apply(Operator op, const OutputOperand& x, const OutputOperand& y,
             std::source_location where);
Output Negate(const OutputOperand& x);

}  // namespace operators_internal

inline Output operator+(const Output& x, const OutputOperand& y) {
  return operators_internal::Apply(operators_internal::Operator::kAdd, x, y, y.where());
}
inline Output operator-(const Output& x, const OutputOperand& y) {
  return operators_internal::Apply(operators_internal::Operator::kSub, x, y, y.where());
}
inline Output operator*(const Output& x, const OutputOperand& y) {
  return operators_internal::Apply(operators_internal::Operator::kMul, x, y, y.where());
}
inline Output operator/(const Output& x, const OutputOperand& y) {
  return operators_internal::Apply(operators_internal::Operator::kTrueDiv, x, y, y.where());
}

template <OperandNumber T>
Output operator+(T x, const OutputOperand& y) {
  return operators_internal::Apply(operators_internal::Operator::kAdd, x, y, y.where());
}
template <OperandNumber T>
Output operator-(T x, const OutputOperand& y) {
  return operators_internal::Apply(operators_internal::Operator::kSub, x, y, y.where());
}
template <OperandNumber T>
Output operator*(T x, const OutputOperand& y) {
  return operators_internal::Apply(operators_internal::Operator::kMul, x, y, y.where());
}
template <OperandNumber T>
Output operator/(T x, const OutputOperand& y) {
  return operators_internal::Apply(operators_internal::Operator::kTrueDiv, x, y, y.where());
}

inline Output operator-(const OutputOperand& x) { return operators_internal::Negate(x); }

}  // namespace millrace

#endif  // MILLRACE_OPS_OPERATORS_H_
