// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_TENSOR_ARRAY_H_
#define MILLRACE_LAYERS_TENSOR_ARRAY_H_

// TensorArray: an array of tensors within a step, as a value: writing gives another one, which has
// the handle and the flow behind the write.
//
//   TensorArray squares(s, DT_FLOAT, n);
//   WhileLoop(s, {zero, squares.flow()}, less_than_n,
//             [&](const Scope& body, const std::vector<Output>& v) -> std::vector<Output> {
//               return {Add(body, v[0], one),
//                       squares.WithFlow(v[1]).Write(body, v[0], Mul(body, v[0], v[0])).flow()};
//             });
//
// An element is written once. What is read after a write takes the array that the write gave; in a
// loop the flow is a loop variable. ops/control/tensor_array.h says what is refused in a step.

#include <cstdint>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "core/shape.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/control/tensor_array.h"

namespace millrace {

class TensorArray {
 public:
  TensorArray() = default;
  // `size` is an int32 scalar.
  TensorArray(ScopeAt at, DType dtype, Output size, const TensorArrayAttrs& attrs = {})
      : dtype_(dtype), element_(attrs.element_shape) {
    const TensorArrayOutputs made = TensorArrayV3(at, std::move(size), dtype, attrs);
    handle_ = made.handle;
    flow_ = made.flow;
  }
  // One for each row of `rows`, in it.
  static TensorArray OfRows(ScopeAt at, const Output& rows, const TensorArrayAttrs& attrs = {}) {
    const PartialShape shape = at.scope.shape(rows);
    TensorArrayAttrs with_shape = attrs;
    if (shape.has_rank() && shape.rank() > 0) {
      with_shape.element_shape = RowOfShape(shape);
      with_shape.identical_element_shapes = true;
    }
    return TensorArray(at, rows.dtype(), NumRows(at, rows), with_shape).Unstack(at, rows);
  }

  const Output& handle() const { return handle_; }
  const Output& flow() const { return flow_; }
  DType dtype() const { return dtype_; }
  bool valid() const { return flow_.valid(); }
  // The array after whatever gave this flow.
  TensorArray WithFlow(Output flow) const {
    TensorArray result = *this;
    result.flow_ = std::move(flow);
    return result;
  }

  Output Read(ScopeAt at, const Output& index) const {
    const Output value = TensorArrayReadV3(at, handle_, index, flow_, dtype_);
    at.scope.SetShape(value, element_);
    return value;
  }
  TensorArray Write(ScopeAt at, const Output& index, const Output& value) const {
    return WithFlow(TensorArrayWriteV3(at, handle_, index, value, flow_));
  }
  // All elements as rows of one tensor.
  Output Stack(ScopeAt at) const {
    return Gather(at, Range(at, Const(at, 0), Size(at), Const(at, 1)));
  }
  Output Gather(ScopeAt at, const Output& indices) const {
    return TensorArrayGatherV3(at, handle_, indices, flow_, dtype_, {.element_shape = element_});
  }
  // The rows of `rows` are the first elements.
  TensorArray Unstack(ScopeAt at, const Output& rows) const {
    return Scatter(at, Range(at, Const(at, 0), NumRows(at, rows), Const(at, 1)), rows);
  }
  TensorArray Scatter(ScopeAt at, const Output& indices, const Output& rows) const {
    return WithFlow(TensorArrayScatterV3(at, handle_, indices, rows, flow_));
  }
  Output Concat(ScopeAt at) const {
    return TensorArrayConcatV3(at, handle_, flow_, dtype_,
                               {.element_shape_except0 = element_.has_rank() && element_.rank() > 0
                                                             ? RowOfShape(element_)
                                                             : PartialShape()})
        .value;
  }
  TensorArray Split(ScopeAt at, const Output& rows, const Output& lengths) const {
    return WithFlow(TensorArraySplitV3(at, handle_, rows, lengths, flow_));
  }
  Output Size(ScopeAt at) const { return TensorArraySizeV3(at, handle_, flow_); }
  Operation Close(ScopeAt at) const { return TensorArrayCloseV3(at, handle_); }

 private:
  static PartialShape RowOfShape(const PartialShape& rows) {
    const StatusOr<PartialShape> row = PartialShape::Make(rows.dims().subspan(1));
    return row.ok() ? *row : PartialShape();
  }
  static Output NumRows(ScopeAt at, const Output& rows) {
    const PartialShape shape = at.scope.shape(rows);
    if (shape.has_rank() && shape.rank() > 0 && shape.dim(0) >= 0) {
      return Const(at, static_cast<int32_t>(shape.dim(0)));
    }
    return StridedSlice(at, ShapeOf(at, rows), Const<int32_t>(at, {0}), Const<int32_t>(at, {1}),
                        Const<int32_t>(at, {1}), {.shrink_axis_mask = 1});
  }

  Output handle_, flow_;
  DType dtype_ = DT_INVALID;
  PartialShape element_;  // what is known of elements
};

}  // namespace millrace

#endif  // MILLRACE_LAYERS_TENSOR_ARRAY_H_
