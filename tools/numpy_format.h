// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_NUMPY_FORMAT_H_
#define MILLRACE_TOOLS_NUMPY_FORMAT_H_

// The text of a tensor as numpy's str() writes an array with its default print options:
//
//   [[2.5]        floats in the shortest form that reads back, at most 8 digits after the
//    [3. ]]       point, points aligned; scientific for all when the largest magnitude is
//                 >= 1e8, the smallest non-zero one < 1e-4 or their ratio > 1000
//   [ 1 20]       integers and Booleans right-aligned; Booleans always five wide
//   [b'0' b'1']   strings as Python's repr of bytes, not aligned
//   2.5           a scalar: the bare value, scientific outside [1e-4, 1e16)
//   []            no elements, whatever the shape
//
// Rows longer than 75 characters wrap; more than 1000 elements are summarised, three at each edge
// of each dimension, and only the elements shown decide about widths. bfloat16 prints as its float
// value, quantised types as their integers.
//
// Thread-safety: pure functions. Failure: none; resources and variants, which numpy does not have,
// print as their type in angle brackets.

#include <string>

#include "absl/strings/string_view.h"
#include "core/tensor.h"

namespace millrace {

std::string NumpyString(const Tensor& tensor);

// b'...' (b"..." when the text has ' but no "), with \t \n \r \\ and \xNN.
std::string PythonBytesRepr(absl::string_view bytes);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_NUMPY_FORMAT_H_
