// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_NUMPY_CALL_H_
#define MILLRACE_TOOLS_NUMPY_CALL_H_

// The few functions of numpy that make arrays of plain arguments, for expressions on a command
// line:
//
//   zeros(shape, dtype=float64)    ones(shape, dtype=float64)    full(shape, fill_value, dtype)
//   array(object, dtype)           asarray(a, dtype)             arange([start,] stop[, step],
//   dtype) float32(value), int64(value), ... of each type
//
// They give what numpy gives, and nothing is evaluated: an argument is a literal, a type or another
// such call (tools/python_literal.h).
//
// Thread-safety: pure functions. Failure: InvalidArgument with the function, its argument, the rule
// and the value; for another function the names of these. An array has less than 2 GiB.

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "tools/python_literal.h"

namespace millrace {

struct NumpyArgument {
  std::string name;  // "" for one by its place
  PythonValue value;
};

// `function` without "np.".
StatusOr<Tensor> CallNumpy(absl::string_view function, absl::Span<const NumpyArgument> arguments);

// "float32", "int", "bool_", and of text also "f4" and "<i8"; nullopt for what is no type, or one
// that tensors do not have.
std::optional<DType> NumpyType(absl::string_view name);
// inf, nan, pi, e.
std::optional<double> NumpyConstant(absl::string_view name);

// The elements as nested lists, as the parser reads them: for an array that stands in a list.
// InvalidArgument for complex numbers, and for more than 65,536 elements.
StatusOr<PythonValue> ListsOfArray(const Tensor& array);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_NUMPY_CALL_H_
