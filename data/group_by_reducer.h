// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_GROUP_BY_REDUCER_H_
#define MILLRACE_DATA_GROUP_BY_REDUCER_H_

// GroupByReducer: one element for each key, reduced from all elements of that key.
//
//   state = init(key)                 at a key's first element
//   state = reduce(state, element)
//   finalize(state)                   when the input has ended: the keys in ascending order
//
// The input is read whole before the first element is given; what is in memory is a state per key.
// An error of key, init and reduce leaves the states as they were, and the element that they were
// called with is gone. Where finalize fails its key is gone: the next call goes on behind it.
//
// Thread-safety: values. Failure: InvalidArgument for a function that is none, and for results that
// `spec` does not allow.

#include <cstdint>

#include "data/dataset.h"
#include "data/element.h"
#include "data/element_function.h"

namespace millrace::data {

struct GroupByReducerFunctions {
  ElementFunction<StatusOr<int64_t>(const Element&)> key;
  ElementFunction<StatusOr<Element>(int64_t key)> init;
  ElementFunction<StatusOr<Element>(Element state, Element element)> reduce;
  ElementFunction<StatusOr<Element>(Element state)> finalize;
};

// `spec`: of what finalize gives; empty: not known.
Dataset GroupByReducer(const Dataset& input, GroupByReducerFunctions functions,
                       ElementSpec spec = {});

}  // namespace millrace::data

#endif  // MILLRACE_DATA_GROUP_BY_REDUCER_H_
