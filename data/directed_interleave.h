// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_DIRECTED_INTERLEAVE_H_
#define MILLRACE_DATA_DIRECTED_INTERLEAVE_H_

// DirectedInterleave: elements of several datasets in the order that another one says: for each
// number i of `selector` (int64 scalars) the next element of inputs[i], or none where that has
// ended. It ends with the selector, and when all inputs have.
//
//   mixture = DirectedInterleave(choices, {common, rare})
//
// Thread-safety: values. Failure: InvalidArgument where there are no inputs, where they differ in
// their components, for a selector that gives anything but int64 scalars, and, while iterating, for
// a number that no input has; the next call goes on behind it.

#include <vector>

#include "data/dataset.h"

namespace millrace::data {

Dataset DirectedInterleave(const Dataset& selector, std::vector<Dataset> inputs);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_DIRECTED_INTERLEAVE_H_
