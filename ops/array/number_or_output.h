// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_NUMBER_OR_OUTPUT_H_
#define MILLRACE_OPS_ARRAY_NUMBER_OR_OUTPUT_H_

// NumberOrOutput: an argument that is a number of the program or a tensor of the graph, and what
// stands on either side of an operator (ops/operators.h). Both convert by themselves:
//
//   AdamOptimizer({.learning_rate = 1e-3});
//   AdamOptimizer({.learning_rate = ExponentialDecay(...)});
//   Output y = 0.5 * x;
//
// A number becomes a constant where it is used, in the dtype that is wanted there; a tensor may
// change from step to step, or be fed.

#include <concepts>
#include <cstdint>
#include <limits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/small_tensors.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/math/cast.h"

namespace millrace {

// What may stand for a tensor: integers and floating numbers; not bool and characters.
template <typename T>
concept OperandNumber =
    (std::integral<T> || std::floating_point<T>)&&!std::same_as<T, bool> && !std::same_as<T, char>;

class NumberOrOutput {
 public:
  template <OperandNumber T>
  NumberOrOutput(T number) {  // NOLINT
    constexpr uint64_t kMaxInteger = std::numeric_limits<int64_t>::max();
    if constexpr (std::floating_point<T>) {
      number_ = static_cast<double>(number);
    } else if (number > 0 && static_cast<uint64_t>(number) > kMaxInteger) {
      number_ = static_cast<double>(number);
    } else {
      number_ = static_cast<int64_t>(number);
    }
  }
  NumberOrOutput(Output output) : is_number_(false), output_(std::move(output)) {}  // NOLINT

  bool is_number() const { return is_number_; }
  // The nearest double; 0 for a tensor.
  double number() const {
    const auto to_double = [](auto number) { return static_cast<double>(number); };
    return std::visit(to_double, number_);
  }
  // The number as a scalar; InvalidArgument where the dtype does not have it
  // (core/small_tensors.h).
  StatusOr<Tensor> NumberAs(DType dtype) const {
    return std::visit([dtype](auto number) { return ScalarTensor(dtype, number); }, number_);
  }
  const Output& output() const { return output_; }  // invalid for a number

 private:
  bool is_number_ = true;
  std::variant<int64_t, double> number_;
  Output output_;
};

// InvalidArgument "<where>: <name> must ..." for a tensor that is no scalar, is not floating or
// does not belong to the scope's graph. Numbers pass.
inline Status CheckFloatingScalar(const Scope& scope, absl::string_view where,
                                  absl::string_view name, const NumberOrOutput& value) {
  if (value.is_number()) return absl::OkStatus();
  const Output& output = value.output();
  if (!output.valid()) {
    return InvalidArgument(where, ": ", name,
                           " must be a number or a tensor of the graph, got an invalid Output");
  }
  if (output.node()->graph() != scope.graph()) {
    return InvalidArgument(where, ": ", name,
                           " must be a number or a tensor of the same graph, got '", output.name(),
                           "' of another");
  }
  if (!IsFloating(WithoutRef(output.dtype()))) {
    return InvalidArgument(where, ": ", name, " must be floating, got ", output.dtype(), " from '",
                           output.name(), "'");
  }
  const PartialShape shape = scope.shape(output);
  if (shape.has_rank() && shape.rank() != 0) {
    return InvalidArgument(where, ": ", name, " must be a scalar, got shape ", shape, " of '",
                           output.name(), "'");
  }
  return absl::OkStatus();
}

// The value as a tensor in the dtype of `like`: a constant, or the tensor, cast where it has
// another dtype. An invalid Output for an invalid `like`, and with an error in the Scope for a
// number that the dtype does not have.
inline Output ScalarIn(ScopeAt at, const NumberOrOutput& value, const Output& like) {
  if (!like.valid()) return Output();
  const DType dtype = WithoutRef(like.dtype());
  if (!value.is_number()) {
    return WithoutRef(value.output().dtype()) == dtype ? value.output()
                                                       : Cast(at, value.output(), dtype);
  }
  const StatusOr<Tensor> number = value.NumberAs(dtype);
  if (number.ok()) return Const(at, *number);
  at.scope.UpdateStatus(
      Prefixed(absl::StrCat("'", at.scope.prefix(), at.scope.RequestedName("Const"), "'"),
               Suffixed(number.status(), absl::StrCat(", next to '", like.name(), "'"))),
      at.where);
  return Output();
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_NUMBER_OR_OUTPUT_H_
