// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_AS_STRING_H_
#define MILLRACE_OPS_STRINGS_AS_STRING_H_

// Numbers as text, and text as numbers.

#include <cstdint>
#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct AsStringAttrs {
  // As of C's printf: %f, or %g where `shortest`, or %e where `scientific`; -1: not given.
  int64_t precision = -1;
  bool scientific = false;
  bool shortest = false;
  int64_t width = -1;
  std::string fill = "";  // "0", "-", "+" or " ": printf's flag
};
// The elements of `input` (int8, int16, int32, int64, float, double, bool, complex) as text, in its
// shape: 5, -0.250000, true, (1.000000,2.000000). InvalidArgument for a precision, `scientific` or
// `shortest` with integers or bools, both of these together, another fill, and a width or precision
// above 1024.
inline Output AsString(ScopeAt at, Output input, const AsStringAttrs& attrs = {}) {
  return BuildOp(at, "AsString", {input}, "precision", attrs.precision, "scientific",
                 attrs.scientific, "shortest", attrs.shortest, "width", attrs.width, "fill",
                 attrs.fill);
}

struct StringToNumberAttrs {
  DType out_type = DT_FLOAT;  // float, double, int32 or int64
};
// The numbers that the strings are, in their shape; blanks may stand around them. InvalidArgument
// "StringToNumberOp could not correctly convert string: <text>" for any other string, and for an
// integer that does not fit.
inline Output StringToNumber(ScopeAt at, Output string_tensor,
                             const StringToNumberAttrs& attrs = {}) {
  return BuildOp(at, "StringToNumber", {string_tensor}, "out_type", attrs.out_type);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_AS_STRING_H_
