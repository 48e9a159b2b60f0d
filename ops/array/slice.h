// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_SLICE_H_
#define MILLRACE_OPS_ARRAY_SLICE_H_

// Parts of tensors: boxes, with or without steps. All dtypes. A slice that is a range of rows
// shares the input's memory.
//
// Begins, ends, sizes and strides are int32 or int64 vectors. Errors: InvalidArgument for a part
// that is not inside the tensor and for vectors whose length is not the rank.

#include <initializer_list>
#include <utility>

#include "graph/node_builder.h"

namespace millrace {

// The box that starts at `begin` and has `size` elements; a size of -1 is all that remain.
inline Output Slice(ScopeAt at, Output input, const TensorArg& begin, const TensorArg& size) {
  return BuildOp(at, "Slice", {input, begin, size});
}

// Bit i of a mask speaks of element i of begin, end and strides.
struct StridedSliceAttrs {
  int64_t begin_mask = 0;        // begin[i] is left out: from the first one
  int64_t end_mask = 0;          // end[i] is left out: to the last one
  int64_t ellipsis_mask = 0;     // "...": as many whole dimensions as it takes; at most one bit
  int64_t new_axis_mask = 0;     // a new dimension of size 1
  int64_t shrink_axis_mask = 0;  // the one element at begin[i]; the dimension goes
};
// The masks by the names of their attrs.
inline constexpr std::pair<const char*, int64_t StridedSliceAttrs::*> kStridedSliceMasks[] = {
    {"begin_mask", &StridedSliceAttrs::begin_mask},
    {"end_mask", &StridedSliceAttrs::end_mask},
    {"ellipsis_mask", &StridedSliceAttrs::ellipsis_mask},
    {"new_axis_mask", &StridedSliceAttrs::new_axis_mask},
    {"shrink_axis_mask", &StridedSliceAttrs::shrink_axis_mask},
};
inline Output BuildStridedOp(ScopeAt at, absl::string_view op,
                             std::initializer_list<BuilderInput> inputs,
                             const StridedSliceAttrs& attrs) {
  return BuildOp(at, op, inputs, "begin_mask", attrs.begin_mask, "end_mask", attrs.end_mask,
                 "ellipsis_mask", attrs.ellipsis_mask, "new_axis_mask", attrs.new_axis_mask,
                 "shrink_axis_mask", attrs.shrink_axis_mask);
}

// NumPy's input[begin:end:strides, ...]. Negative begins and ends count from the end; what is
// outside is cut off, but an index of shrink_axis_mask must be inside.
inline Output StridedSlice(ScopeAt at, Output input, const TensorArg& begin, const TensorArg& end,
                           const TensorArg& strides, const StridedSliceAttrs& attrs = {}) {
  return BuildStridedOp(at, "StridedSlice", {input, begin, end, strides}, attrs);
}
// Zeros of shape `shape` with `dy` where StridedSlice would read.
inline Output StridedSliceGrad(ScopeAt at, Output shape, Output begin, Output end, Output strides,
                               Output dy, const StridedSliceAttrs& attrs = {}) {
  return BuildStridedOp(at, "StridedSliceGrad", {shape, begin, end, strides, dy}, attrs);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_SLICE_H_
