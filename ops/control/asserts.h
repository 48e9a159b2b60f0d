// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_CONTROL_ASSERTS_H_
#define MILLRACE_OPS_CONTROL_ASSERTS_H_

// Checks and prints within a step.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct AssertAttrs {
  int64_t summarize = 3;  // elements of each tensor in the message; -1: all
};
// InvalidArgument "assertion failed: [data[0]] [data[1]] ..." unless condition (a bool scalar).
inline Operation Assert(ScopeAt at, Output condition, absl::Span<const Output> data,
                        const AssertAttrs& attrs = {}) {
  return BuildOp(at, "Assert", {condition, data}, "summarize", attrs.summarize);
}

// The tensor (floating); InvalidArgument "<message> : Tensor had NaN values" when an element is NaN
// or infinite.
inline Output CheckNumerics(ScopeAt at, Output tensor, const std::string& message) {
  return BuildOp(at, "CheckNumerics", {tensor}, "message", message);
}

struct PrintAttrs {
  std::string message = "";
  int64_t first_n = -1;  // only so many times; -1: always
  int64_t summarize = 3;
};
// The input; prints "<message>[data[0]][data[1]]..." to stderr.
inline Output Print(ScopeAt at, Output input, absl::Span<const Output> data,
                    const PrintAttrs& attrs = {}) {
  return BuildOp(at, "Print", {input, data}, "message", attrs.message, "first_n", attrs.first_n,
                 "summarize", attrs.summarize);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_CONTROL_ASSERTS_H_
