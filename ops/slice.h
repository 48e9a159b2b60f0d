// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SLICE_H_
#define MILLRACE_OPS_SLICE_H_

// Parts of tensors, and tensors around them: slices, padding, repetition, reversal. All dtypes
// unless an op says otherwise. A slice that is a range of rows shares the input's memory.
//
// Begins, ends, sizes, strides, paddings, multiples and axes are int32 or int64 vectors (paddings:
// an [n, 2] matrix). Errors: InvalidArgument for a part that is not inside the tensor and for
// vectors whose length is not the rank.

#include <vector>

#include "graph/node_builder.h"

namespace millrace {

// The box that starts at `begin` and has `size` elements; a size of -1 is all that remain.
inline Output Slice(ScopeAt at, Output input, Output begin, Output size) {
  return NodeBuilder(at, "Slice").Input(input).Input(begin).Input(size).Finish().output(0);
}

// Bit i of a mask speaks of element i of begin, end and strides.
struct StridedSliceAttrs {
  int64_t begin_mask = 0;        // begin[i] is left out: from the first one
  int64_t end_mask = 0;          // end[i] is left out: to the last one
  int64_t ellipsis_mask = 0;     // "...": as many whole dimensions as it takes; at most one bit
  int64_t new_axis_mask = 0;     // a new dimension of size 1
  int64_t shrink_axis_mask = 0;  // the one element at begin[i]; the dimension goes
};
// NumPy's input[begin:end:strides, ...]. Negative begins and ends count from the end; what is
// outside is cut off, but an index of shrink_axis_mask must be inside.
inline Output StridedSlice(ScopeAt at, Output input, Output begin, Output end, Output strides,
                           const StridedSliceAttrs& attrs = {}) {
  return NodeBuilder(at, "StridedSlice")
      .Input(input)
      .Input(begin)
      .Input(end)
      .Input(strides)
      .Attr("begin_mask", attrs.begin_mask)
      .Attr("end_mask", attrs.end_mask)
      .Attr("ellipsis_mask", attrs.ellipsis_mask)
      .Attr("new_axis_mask", attrs.new_axis_mask)
      .Attr("shrink_axis_mask", attrs.shrink_axis_mask)
      .Finish()
      .output(0);
}
// Zeros of shape `shape` with `dy` where StridedSlice would read.
inline Output StridedSliceGrad(ScopeAt at, Output shape, Output begin, Output end, Output strides,
                               Output dy, const StridedSliceAttrs& attrs = {}) {
  return NodeBuilder(at, "StridedSliceGrad")
      .Input(shape)
      .Input(begin)
      .Input(end)
      .Input(strides)
      .Input(dy)
      .Attr("begin_mask", attrs.begin_mask)
      .Attr("end_mask", attrs.end_mask)
      .Attr("ellipsis_mask", attrs.ellipsis_mask)
      .Attr("new_axis_mask", attrs.new_axis_mask)
      .Attr("shrink_axis_mask", attrs.shrink_axis_mask)
      .Finish()
      .output(0);
}

// `paddings[d]` = how many zeros before and after in dimension d.
inline Output Pad(ScopeAt at, Output input, Output paddings) {
  return NodeBuilder(at, "Pad").Input(input).Input(paddings).Finish().output(0);
}
// The same with a scalar instead of zeros.
inline Output PadV2(ScopeAt at, Output input, Output paddings, Output constant_values) {
  return NodeBuilder(at, "PadV2")
      .Input(input)
      .Input(paddings)
      .Input(constant_values)
      .Finish()
      .output(0);
}
// Padding with the tensor's own elements, mirrored at its border: mode "REFLECT" does not repeat
// the border itself (paddings < size), "SYMMETRIC" does (paddings <= size).
inline Output MirrorPad(ScopeAt at, Output input, Output paddings, const std::string& mode) {
  return NodeBuilder(at, "MirrorPad")
      .Input(input)
      .Input(paddings)
      .Attr("mode", mode)
      .Finish()
      .output(0);
}
// The gradient of MirrorPad: adds up what comes from copies of one element. Numbers only.
inline Output MirrorPadGrad(ScopeAt at, Output input, Output paddings, const std::string& mode) {
  return NodeBuilder(at, "MirrorPadGrad")
      .Input(input)
      .Input(paddings)
      .Attr("mode", mode)
      .Finish()
      .output(0);
}

// The input repeated multiples[d] times along dimension d.
inline Output Tile(ScopeAt at, Output input, Output multiples) {
  return NodeBuilder(at, "Tile").Input(input).Input(multiples).Finish().output(0);
}
// The dimensions in `axis` (a vector) backwards.
inline Output ReverseV2(ScopeAt at, Output tensor, Output axis) {
  return NodeBuilder(at, "ReverseV2").Input(tensor).Input(axis).Finish().output(0);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_SLICE_H_
