// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_OPTIONAL_OPS_H_
#define MILLRACE_DATA_OPTIONAL_OPS_H_

// Optionals: an element, or none, as a variant scalar: the end of a dataset that a graph looks at
// instead of a step that ends with OutOfRange.
//
//   Output optional = IteratorGetNextAsOptional(scope, iterator, types, shapes);
//   Output more = OptionalHasValue(scope, optional);
//   std::vector<Output> element = OptionalGetValue(scope, optional, types, shapes);

#include <vector>

#include "graph/node_builder.h"

namespace millrace {

// The next element; none at the end. Other errors are those of IteratorGetNext.
inline Output IteratorGetNextAsOptional(ScopeAt at, Output iterator,
                                        const std::vector<DType>& output_types,
                                        const std::vector<PartialShape>& output_shapes) {
  return BuildOp(at, "IteratorGetNextAsOptional", {iterator}, "output_types", output_types,
                 "output_shapes", output_shapes);
}
inline Output OptionalFromValue(ScopeAt at, absl::Span<const Output> components) {
  return BuildOp(at, "OptionalFromValue", {components});
}
inline Output OptionalNone(ScopeAt at) { return BuildOp(at, "OptionalNone", {}); }
// Bool scalar.
inline Output OptionalHasValue(ScopeAt at, Output optional) {
  return BuildOp(at, "OptionalHasValue", {optional});
}
// InvalidArgument when there is none, or an element of other types or shapes.
inline std::vector<Output> OptionalGetValue(ScopeAt at, Output optional,
                                            const std::vector<DType>& output_types,
                                            const std::vector<PartialShape>& output_shapes) {
  return BuildOp(at, "OptionalGetValue", {optional}, "output_types", output_types, "output_shapes",
                 output_shapes)
      .outputs(0, static_cast<int>(output_types.size()));
}

}  // namespace millrace

#endif  // MILLRACE_DATA_OPTIONAL_OPS_H_
