// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_NUMBER_OR_OUTPUT_H_
#define MILLRACE_OPS_ARRAY_NUMBER_OR_OUTPUT_H_

// NumberOrOutput: an argument that is a number of the program or a tensor of the graph. Both
// convert by themselves:
//
//   AdamOptimizer({.learning_rate = 1e-3});
//   AdamOptimizer({.learning_rate = ExponentialDecay(...)});
//
// A number becomes a constant where it is used; a tensor may change from step to step, or be fed.

#include <utility>

#include "core/dtype.h"
#include "core/status.h"
#include "graph/scope.h"
#include "ops/array/scalar_like.h"
#include "ops/math/cast.h"

namespace millrace {

class NumberOrOutput {
 public:
  NumberOrOutput(double number) : number_(number) {}                                // NOLINT
  NumberOrOutput(Output output) : is_number_(false), output_(std::move(output)) {}  // NOLINT

  bool is_number() const { return is_number_; }
  double number() const { return number_; }         // 0 for a tensor
  const Output& output() const { return output_; }  // invalid for a number

 private:
  double number_ = 0;
  bool is_number_ = true;
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

// The value as a tensor in the dtype of `like` (floating): a constant, or the tensor, cast where it
// has another dtype.
inline Output ScalarIn(ScopeAt at, const NumberOrOutput& value, const Output& like) {
  if (value.is_number()) return ScalarLike(at, like, value.number());
  if (value.output().dtype() == like.dtype()) return value.output();
  return Cast(at, value.output(), WithoutRef(like.dtype()));
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_NUMBER_OR_OUTPUT_H_
