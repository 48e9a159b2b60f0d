// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_CONTROL_STACK_H_
#define MILLRACE_OPS_CONTROL_STACK_H_

// Stacks: what a loop has computed in its iterations, for its gradient, which takes it in the
// opposite order.
//
// A stack lives within its step. Pushing and popping are in no order but that of the graph. The ops
// whose name has no V2, whose handle is a reference, are those of old graphs.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct StackAttrs {
  std::string stack_name = "";  // for messages; the node's name when empty
};
// A handle to an empty stack of elements of `elem_type`, at most `max_size` (int32 scalar;
// negative: any number).
inline Output StackV2(ScopeAt at, Output max_size, DType elem_type, const StackAttrs& attrs = {}) {
  return BuildOp(at, "StackV2", {max_size}, "elem_type", elem_type, "stack_name", attrs.stack_name);
}
inline Output StackV1(ScopeAt at, DType elem_type, const StackAttrs& attrs = {}) {
  return BuildOp(at, "Stack", {}, "elem_type", elem_type, "stack_name", attrs.stack_name);
}

struct StackPushAttrs {
  bool swap_memory = false;  // no effect: there is one kind of memory
};
// `elem`, which is on the stack from then on. InvalidArgument: of another type, the stack full or
// closed.
struct StackPushBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output handle, Output elem,
                    const StackPushAttrs& attrs = {}) const {
    return BuildOp(at, op, {handle, elem}, "swap_memory", attrs.swap_memory);
  }
};
inline constexpr StackPushBuilder StackPushV1{"StackPush"};
inline constexpr StackPushBuilder StackPushV2{"StackPushV2"};

// The element that was pushed last, which is no longer on the stack. InvalidArgument: none, or the
// stack closed.
struct StackPopBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output handle, DType elem_type) const {
    return BuildOp(at, op, {handle}, "elem_type", elem_type);
  }
};
inline constexpr StackPopBuilder StackPopV1{"StackPop"};
inline constexpr StackPopBuilder StackPopV2{"StackPopV2"};

// Gives the elements' memory back before the step ends.
struct StackCloseBuilder {
  const char* op;
  Operation operator()(ScopeAt at, Output handle) const { return BuildOp(at, op, {handle}); }
};
inline constexpr StackCloseBuilder StackCloseV1{"StackClose"};
inline constexpr StackCloseBuilder StackCloseV2{"StackCloseV2"};

}  // namespace millrace

#endif  // MILLRACE_OPS_CONTROL_STACK_H_
