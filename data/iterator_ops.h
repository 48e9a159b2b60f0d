// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ITERATOR_OPS_H_
#define MILLRACE_DATA_ITERATOR_OPS_H_

// Iterators in graphs: how the elements of a dataset become tensors of a step.
//
//   Output iterator = IteratorV2(scope, {DT_INT64}, {PartialShape::Scalar()});
//   std::vector<Output> next = IteratorGetNext(scope, iterator, {DT_INT64}, {...});
//   Operation initializer = MakeIterator(scope, dataset, iterator);
//
// data/initializable_iterator.h makes these for a Dataset of this process.
//
// An iterator belongs to its task: put it on the device of the step that reads it, never on a
// parameter server. It is in no checkpoint unless SerializeIterator's output is saved. One without
// a shared_name is its session's and ends with that.
//
// Types and shapes are those of the elements, one shape per type. Errors:
//   * IteratorGetNext: FailedPrecondition before MakeIterator has run; OutOfRange "End of
//     sequence"; the error of the element that it would give; Cancelled with its step, and when the
//     iterator is initialized anew meanwhile. It waits without a thread of the step;
//   * MakeIterator: InvalidArgument for a dataset of other elements; FailedPrecondition for one
//     that lives in another process. Run again, it begins anew.

#include <string>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct IteratorAttrs {
  std::string shared_name = "";  // empty: the session's own, by the node's name
  std::string container = "";
};
// A handle to an iterator that has no dataset yet.
inline Output IteratorV2(ScopeAt at, const std::vector<DType>& output_types,
                         const std::vector<PartialShape>& output_shapes,
                         const IteratorAttrs& attrs = {}) {
  return BuildOp(at, "IteratorV2", {}, "shared_name", attrs.shared_name, "container",
                 attrs.container, "output_types", output_types, "output_shapes", output_shapes);
}
// Lets the iterator begin at the start of `dataset`, a variant scalar.
inline Operation MakeIterator(ScopeAt at, Output dataset, Output iterator) {
  return BuildOp(at, "MakeIterator", {dataset, iterator});
}
// The components of the next element.
inline std::vector<Output> IteratorGetNext(ScopeAt at, Output iterator,
                                           const std::vector<DType>& output_types,
                                           const std::vector<PartialShape>& output_shapes) {
  return BuildOp(at, "IteratorGetNext", {iterator}, "output_types", output_types, "output_shapes",
                 output_shapes)
      .outputs(0, static_cast<int>(output_types.size()));
}
// The handle as a string, to be fed where IteratorFromStringHandleV2 takes one: so a step chooses
// its iterator.
inline Output IteratorToStringHandle(ScopeAt at, Output iterator) {
  return BuildOp(at, "IteratorToStringHandle", {iterator});
}
// The iterator of a string handle. InvalidArgument unless it is one of this device, and, where
// types are given, its elements are of these.
inline Output IteratorFromStringHandleV2(ScopeAt at, Output string_handle,
                                         const std::vector<DType>& output_types = {},
                                         const std::vector<PartialShape>& output_shapes = {}) {
  return BuildOp(at, "IteratorFromStringHandleV2", {string_handle}, "output_types", output_types,
                 "output_shapes", output_shapes);
}
// Where the iterator stands, a variant scalar that can be saved, and back. The iterator that goes
// on from there must have been initialized with the same dataset.
inline Output SerializeIterator(ScopeAt at, Output iterator) {
  return BuildOp(at, "SerializeIterator", {iterator});
}
inline Operation DeserializeIterator(ScopeAt at, Output iterator, Output serialized) {
  return BuildOp(at, "DeserializeIterator", {iterator, serialized});
}

}  // namespace millrace

#endif  // MILLRACE_DATA_ITERATOR_OPS_H_
