// SPDX-License-Identifier: Apache-2.0
#include "ops/control/tensor_list.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/later_attrs.h"
#include "graph/shape_inference.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/kernels/tensor_list.h"
#include "ops/kernels/tensor_list_op.h"
#include "ops/rules/rows.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Output 0 is a list of elements that input `shape_input` describes.
Status NewListShape(InferenceContext* c, int shape_input) {
  HandleData data;
  MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "element_dtype", &data.dtype));
  MR_ASSIGN_OR_RETURN(data.shape, ListElementShape(c, shape_input));
  c->set_output(0, Shape());
  c->set_output_handle(0, std::move(data));
  return absl::OkStatus();
}

// Output 0 is the list at input 0, changed.
Status ChangedListShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "input_handle").status());
  c->set_output(0, Shape());
  if (c->input_handle(0)) c->set_output_handle(0, *c->input_handle(0));
  return absl::OkStatus();
}

// An item that is put into the list at input 0 must agree with what is known of it.
Status CheckItemShape(InferenceContext* c, const PartialShape& item) {
  const PartialShape element = KnownListElement(c, 0);
  if (element.IsCompatibleWith(item)) return absl::OkStatus();
  return InvalidArgument("the list's element shape ", element,
                         " must allow what is put into it, got shape ", item);
}

// In gradients: what the list at input i knows of its elements.
Output ElementShapeOfInput(GradientContext* c, int i) {
  return TensorListElementShape(c->scope(), c->input(i), DT_INT32);
}
// The shape of an element as an int32 vector, where input i of the op has the rows.
Output RowShape(GradientContext* c, int i) {
  const Scope& s = c->scope();
  return Slice(s, ShapeOf(s, c->input(i)), Const<int32_t>(s, {1}), Const<int32_t>(s, {-1}));
}

// --- New lists -----------------------------------------------------------------------------------

const OpRegistration kEmpty =
    OpSpec("EmptyTensorList",
           "element_shape: shape_type, max_num_elements: int32 -> handle: variant",
           kListShapeTypeAttrs)
        .Shape([](InferenceContext* c) {
          MR_RETURN_IF_ERROR(c->InputWithRank(1, 0, "max_num_elements").status());
          return NewListShape(c, 0);
        })
        .NotDifferentiable()
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          TensorListSpec spec = {.dtype = dtype};
          MR_ASSIGN_OR_RETURN(spec.element_shape, ElementShapeOf(ctx->input(0)));
          MR_ASSIGN_OR_RETURN(spec.max_num_elements,
                              ctx->ScalarInput<int32_t>(1, "max_num_elements"));
          ctx->set_output(0, MakeTensorList(spec, {}));
          return absl::OkStatus();
        }));

const OpRegistration kReserve =
    OpSpec("TensorListReserve", "element_shape: shape_type, num_elements: int32 -> handle: variant",
           kListShapeTypeAttrs)
        .Shape([](InferenceContext* c) {
          MR_RETURN_IF_ERROR(c->InputWithRank(1, 0, "num_elements").status());
          return NewListShape(c, 0);
        })
        .NotDifferentiable()
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          TensorListSpec spec = {.dtype = dtype};
          MR_ASSIGN_OR_RETURN(spec.element_shape, ElementShapeOf(ctx->input(0)));
          MR_ASSIGN_OR_RETURN(const int32_t n, ctx->ScalarInput<int32_t>(1, "num_elements"));
          MR_RETURN_IF_ERROR(CheckTensorListSize(n));
          ctx->set_output(0, MakeTensorList(spec, std::vector<Tensor>(static_cast<size_t>(n))));
          return absl::OkStatus();
        }));

// Elements of `shape`, which the list's must allow.
Status CheckRows(const PartialShape& list, const Shape& element) {
  if (list.IsCompatibleWith(element)) return absl::OkStatus();
  return InvalidArgument("Specified a list with shape ", list, " from a tensor with shape ",
                         element);
}
Status CheckHasRows(const Tensor& tensor) {
  if (tensor.rank() > 0) return absl::OkStatus();
  return InvalidArgument("Tensor must be at least a vector, but saw shape: ", tensor.shape());
}

const OpRegistration kFromTensor =
    OpSpec("TensorListFromTensor",
           "tensor: element_dtype, element_shape: shape_type -> output_handle: variant",
           kListShapeTypeAttrs)
        .Shape([](InferenceContext* c) -> Status {
          MR_ASSIGN_OR_RETURN(const PartialShape tensor, c->InputWithRankAtLeast(0, 1, "tensor"));
          MR_ASSIGN_OR_RETURN(const PartialShape element, ListElementShape(c, 1));
          if (!ShapeOfRows(-1, element).IsCompatibleWith(tensor)) {
            return InvalidArgument("Specified a list with shape ", element,
                                   " from rows of a tensor with shape ", tensor);
          }
          return NewListShape(c, 1);
        })
        .Gradient(+[](GradientContext* c) -> Output {
          const PartialShape shape = c->scope().shape(c->input(0));
          return TensorListStack(
              c->scope(), c->dense_grad(), RowShape(c, 0), c->input(0).dtype(),
              {.num_elements = shape.has_rank() && shape.rank() > 0 ? shape.dim(0) : -1});
        })
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          TensorListSpec spec = {.dtype = dtype};
          MR_ASSIGN_OR_RETURN(spec.element_shape, ElementShapeOf(ctx->input(1)));
          const Tensor& tensor = ctx->input(0);
          MR_RETURN_IF_ERROR(CheckHasRows(tensor));
          MR_RETURN_IF_ERROR(CheckRows(spec.element_shape, tensor.shape().WithoutDim(0)));
          MR_RETURN_IF_ERROR(CheckTensorListSize(tensor.dim(0)));
          if (dtype == DT_VARIANT) MR_RETURN_IF_ERROR(CheckTensorListNesting(tensor));
          std::vector<Tensor> elements;
          elements.reserve(static_cast<size_t>(tensor.dim(0)));
          for (int64_t i = 0; i < tensor.dim(0); ++i) {
            MR_ASSIGN_OR_RETURN(Tensor row, RowOf(tensor, i));
            elements.push_back(std::move(row));
          }
          ctx->set_output(0, MakeTensorList(spec, std::move(elements)));
          return absl::OkStatus();
        }));

const OpRegistration kSplit =
    OpSpec("TensorListSplit",
           "tensor: element_dtype, element_shape: shape_type, lengths: int64 -> "
           "output_handle: variant",
           kListShapeTypeAttrs)
        .Shape([](InferenceContext* c) -> Status {
          MR_RETURN_IF_ERROR(c->InputWithRankAtLeast(0, 1, "tensor").status());
          MR_RETURN_IF_ERROR(c->InputWithRank(2, 1, "lengths").status());
          return NewListShape(c, 1);
        })
        .Gradient(+[](GradientContext* c) -> Output {
          const Scope& s = c->scope();
          const Output except_first = RowShape(c, 0);
          const Output element = ConcatV2(s, {Const<int32_t>(s, {-1}), except_first}, Const(s, 0));
          return TensorListConcatV2(s, c->dense_grad(), element, c->input(2), c->input(0).dtype())
              .tensor;
        })
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          TensorListSpec spec = {.dtype = dtype};
          MR_ASSIGN_OR_RETURN(spec.element_shape, ElementShapeOf(ctx->input(1)));
          const Tensor& tensor = ctx->input(0);
          const Tensor& lengths = ctx->input(2);
          MR_RETURN_IF_ERROR(CheckHasRows(tensor));
          const PartialShape& element = spec.element_shape;
          if (element.has_rank()) {
            if (element.rank() == 0) {
              return InvalidArgument(
                  "TensorListSplit requires element_shape to be at least of rank 1, but saw: ",
                  element);
            }
            MR_ASSIGN_OR_RETURN(const PartialShape rest,
                                PartialShape::Make(element.dims().subspan(1)));
            if (!rest.IsCompatibleWith(tensor.shape().WithoutDim(0))) {
              return InvalidArgument("tensor shape ", tensor.shape(),
                                     " is not compatible with element_shape ", element);
            }
          }
          if (lengths.rank() != 1) {
            return InvalidArgument("Expected lengths to be a vector, received shape: ",
                                   lengths.shape());
          }
          MR_RETURN_IF_ERROR(CheckTensorListSize(lengths.num_elements()));
          if (dtype == DT_VARIANT) MR_RETURN_IF_ERROR(CheckTensorListNesting(tensor));
          std::vector<Tensor> elements;
          int64_t begin = 0;
          for (const int64_t length : lengths.raw<int64_t>()) {
            if (length < 0) return InvalidArgument("Invalid value in lengths: ", length);
            if (length > tensor.dim(0) - begin) {
              return InvalidArgument("Attempting to slice [", begin, ", ", begin, " + ", length,
                                     "] from tensor with length ", tensor.dim(0));
            }
            elements.push_back(tensor.Rows(begin, begin + length));
            if (!element.IsCompatibleWith(elements.back().shape())) {
              return InvalidArgument("tensor shape ", tensor.shape(),
                                     " is not compatible with element_shape ", element);
            }
            begin += length;
          }
          if (begin != tensor.dim(0)) {
            return InvalidArgument("Unused values in tensor. Length of tensor: ", tensor.dim(0),
                                   " Values used: ", begin);
          }
          ctx->set_output(0, MakeTensorList(spec, std::move(elements)));
          return absl::OkStatus();
        }));

// --- Scatter -------------------------------------------------------------------------------------

// Sets elements indices[i] to row i of `tensor`; the list is long enough.
Status SetRows(const Tensor& tensor, absl::Span<const int32_t> indices,
               std::vector<Tensor>* elements) {
  for (size_t i = 0; i < indices.size(); ++i) {
    MR_ASSIGN_OR_RETURN((*elements)[static_cast<size_t>(indices[i])],
                        RowOf(tensor, static_cast<int64_t>(i)));
  }
  return absl::OkStatus();
}

// How long a list has to be for the indices. InvalidArgument for a negative one.
StatusOr<int64_t> LengthFor(const Tensor& tensor, const Tensor& indices) {
  MR_RETURN_IF_ERROR(CheckHasRows(tensor));
  if (indices.rank() != 1) {
    return InvalidArgument("Expected indices to be a vector, but received shape: ",
                           indices.shape());
  }
  if (indices.num_elements() != tensor.dim(0)) {
    return InvalidArgument("Invalid number of rows in input tensor. Expected: ",
                           indices.num_elements(), " Actual: ", tensor.dim(0));
  }
  int64_t length = 0;
  for (const int64_t index : indices.raw<int32_t>()) {
    if (index < 0) {
      return InvalidArgument("Indices in TensorListScatter must all be non-negative, got ", index);
    }
    length = std::max(length, index + 1);
  }
  return length;
}

Status RunScatter(KernelContext* ctx, DType dtype) {
  TensorListSpec spec = {.dtype = dtype};
  MR_ASSIGN_OR_RETURN(spec.element_shape, ElementShapeOf(ctx->input(2)));
  const Tensor& tensor = ctx->input(0);
  MR_ASSIGN_OR_RETURN(int64_t length, LengthFor(tensor, ctx->input(1)));
  MR_RETURN_IF_ERROR(CheckRows(spec.element_shape, tensor.shape().WithoutDim(0)));
  if (dtype == DT_VARIANT) MR_RETURN_IF_ERROR(CheckTensorListNesting(tensor));
  if (ctx->num_inputs() == 4) {
    MR_ASSIGN_OR_RETURN(const int32_t wanted, ctx->ScalarInput<int32_t>(3, "num_elements"));
    if (wanted < -1) {
      return InvalidArgument("TensorListScatter expects num_elements >= -1, found: ", wanted);
    }
    if (wanted >= 0 && length > wanted) {
      return InvalidArgument("TensorListScatter: Trying to scatter at index ", length - 1,
                             " in list with size ", wanted);
    }
    length = std::max<int64_t>(length, wanted);
  }
  MR_RETURN_IF_ERROR(CheckTensorListSize(length));
  std::vector<Tensor> elements(static_cast<size_t>(length));
  MR_RETURN_IF_ERROR(SetRows(tensor, ctx->input(1).raw<int32_t>(), &elements));
  ctx->set_output(0, MakeTensorList(spec, std::move(elements)));
  return absl::OkStatus();
}

// The gradients that readers gave to the elements that were set, as rows.
Output ScatterGradient(GradientContext* c) {
  return TensorListGather(c->scope(), c->dense_grad(), c->input(1), RowShape(c, 0),
                          c->input(0).dtype());
}

Status ScatterShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRankAtLeast(0, 1, "tensor").status());
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 1, "indices").status());
  return NewListShape(c, 2);
}

const OpRegistration kScatter =
    OpSpec("TensorListScatter",
           "tensor: element_dtype, indices: int32, element_shape: shape_type -> "
           "output_handle: variant",
           kListShapeTypeAttrs)
        .Shape(ScatterShape)
        .Gradient(ScatterGradient)
        .With(KernelFor<ListKernel>(RunScatter));
const OpRegistration kScatterV2 =
    OpSpec("TensorListScatterV2",
           "tensor: element_dtype, indices: int32, element_shape: shape_type, num_elements: int32 "
           "-> output_handle: variant",
           kListShapeTypeAttrs)
        .Shape(ScatterShape)
        .Gradient(ScatterGradient)
        .With(KernelFor<ListKernel>(RunScatter));

const OpRegistration kScatterIntoExisting =
    OpSpec("TensorListScatterIntoExistingList",
           "input_handle: variant, tensor: element_dtype, indices: int32 -> output_handle: variant",
           kListDtypeAttr)
        .Shape([](InferenceContext* c) -> Status {
          MR_RETURN_IF_ERROR(c->InputWithRankAtLeast(1, 1, "tensor").status());
          MR_RETURN_IF_ERROR(c->InputWithRank(2, 1, "indices").status());
          return ChangedListShape(c);
        })
        .Gradient(+[](GradientContext* c) -> std::vector<Output> {
          const Scope& s = c->scope();
          const Output grad = c->dense_grad(), indices = c->input(2);
          // The list may have become longer.
          return {
              TensorListResize(
                  s, TensorListScatterIntoExistingList(s, grad, ZerosLike(s, c->input(1)), indices),
                  TensorListLength(s, c->input(0))),
              TensorListGather(s, grad, indices, RowShape(c, 1), c->input(1).dtype())};
        })
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType) -> Status {
          const Tensor tensor = ctx->input(1), indices = ctx->input(2);
          MR_ASSIGN_OR_RETURN(const TensorListView list,
                              ReadTensorList(ctx->input(0), "input_handle"));
          if (tensor.dtype() != list.spec.dtype) {
            return InvalidArgument("Invalid data types; input tensor type: ", tensor.dtype(),
                                   " list element_type: ", list.spec.dtype);
          }
          MR_ASSIGN_OR_RETURN(const int64_t length, LengthFor(tensor, indices));
          MR_RETURN_IF_ERROR(CheckRows(list.spec.element_shape, tensor.shape().WithoutDim(0)));
          MR_RETURN_IF_ERROR(CheckTensorListSize(length));
          if (tensor.dtype() == DT_VARIANT) MR_RETURN_IF_ERROR(CheckTensorListNesting(tensor));
          MR_ASSIGN_OR_RETURN(std::vector<Tensor>* const elements, OutputChanged(ctx));
          if (static_cast<int64_t>(elements->size()) < length) {
            elements->resize(static_cast<size_t>(length));
          }
          return SetRows(tensor, indices.raw<int32_t>(), elements);
        }));

// --- Push, pop -----------------------------------------------------------------------------------

// An element that is put behind the list.
Status CheckPush(const TensorListView& list, const Shape& element) {
  if (!list.spec.element_shape.IsCompatibleWith(element)) {
    return InvalidArgument(
        "Tried to append a tensor with incompatible shape to a list. Op element shape: ", element,
        " list shape: ", list.spec.element_shape);
  }
  const int64_t size = static_cast<int64_t>(list.elements.size());
  if (list.spec.max_num_elements >= 0 && size >= list.spec.max_num_elements) {
    return InvalidArgument("Tried to push item into a full list list size: ", size,
                           " max_num_elements: ", list.spec.max_num_elements);
  }
  return CheckTensorListSize(size + 1);
}

const OpRegistration kPushBack =
    OpSpec("TensorListPushBack",
           "input_handle: variant, tensor: element_dtype -> output_handle: variant", kListDtypeAttr)
        .Shape([](InferenceContext* c) -> Status {
          MR_RETURN_IF_ERROR(CheckItemShape(c, c->input(1)));
          return ChangedListShape(c);
        })
        .Gradient(+[](GradientContext* c) -> std::vector<Output> {
          const auto popped = TensorListPopBack(
              c->scope(), c->dense_grad(), ShapeOf(c->scope(), c->input(1)), c->input(1).dtype());
          return {popped.list, popped.tensor};
        })
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          MR_ASSIGN_OR_RETURN(const TensorListView list, ListInput(*ctx, 0, "input_handle", dtype));
          MR_RETURN_IF_ERROR(CheckPush(list, ctx->input(1).shape()));
          if (dtype == DT_VARIANT) MR_RETURN_IF_ERROR(CheckTensorListNesting(ctx->input(1)));
          MR_ASSIGN_OR_RETURN(std::vector<Tensor>* const elements, OutputChanged(ctx));
          elements->push_back(ctx->TakeInput(1));
          return absl::OkStatus();
        }));

const OpRegistration kPushBackBatch =
    OpSpec("TensorListPushBackBatch",
           "input_handles: variant, tensor: element_dtype -> output_handles: variant",
           kListDtypeAttr)
        .Shape([](InferenceContext* c) -> Status {
          MR_ASSIGN_OR_RETURN(const PartialShape lists, c->InputWithRank(0, 1, "input_handles"));
          MR_ASSIGN_OR_RETURN(const PartialShape tensor, c->InputWithRankAtLeast(1, 1, "tensor"));
          if (tensor.has_rank() && !lists.IsCompatibleWith(PartialShape({tensor.dim(0)}))) {
            return InvalidArgument("Expected tensor.shape[0] == input_handles.size, but saw ",
                                   tensor.dim(0), " vs. ", lists.dim(0));
          }
          c->set_output(0, lists);
          if (c->input_handle(0)) c->set_output_handle(0, *c->input_handle(0));
          return absl::OkStatus();
        })
        .NotDifferentiable()
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          const Tensor& lists = ctx->input(0);
          const Tensor& tensor = ctx->input(1);
          if (lists.rank() != 1) {
            return InvalidArgument("Expected input_handles to be a vector, but saw shape: ",
                                   lists.shape());
          }
          MR_RETURN_IF_ERROR(CheckHasRows(tensor));
          if (tensor.dim(0) != lists.dim(0)) {
            return InvalidArgument("Expected tensor.shape[0] == input_handles.size, but saw ",
                                   tensor.dim(0), " vs. ", lists.dim(0));
          }
          if (dtype == DT_VARIANT) MR_RETURN_IF_ERROR(CheckTensorListNesting(tensor));
          MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, lists.shape()));
          for (int64_t b = 0; b < lists.dim(0); ++b) {
            const size_t at = static_cast<size_t>(b);
            MR_ASSIGN_OR_RETURN(const TensorListView list,
                                ReadTensorList(lists.raw<Variant>()[at]));
            if (list.spec.dtype != dtype) {
              return InvalidArgument("Invalid data type at index ", b, "; op elements ", dtype,
                                     " but list elements ", list.spec.dtype);
            }
            MR_RETURN_IF_ERROR(CheckPush(list, tensor.shape().WithoutDim(0)));
            std::vector<Tensor> elements(list.elements.begin(), list.elements.end());
            MR_ASSIGN_OR_RETURN(Tensor row, RowOf(tensor, b));
            elements.push_back(std::move(row));
            out->mutable_raw<Variant>()[at] =
                MakeTensorList(list.spec, std::move(elements)).raw_scalar<Variant>();
          }
          return absl::OkStatus();
        }));

const OpRegistration kPopBack =
    OpSpec("TensorListPopBack",
           "input_handle: variant, element_shape: int32 -> output_handle: variant, "
           "tensor: element_dtype",
           kListDtypeAttr)
        .Shape([](InferenceContext* c) -> Status {
          MR_ASSIGN_OR_RETURN(const PartialShape element, MergedListElementShape(c, 1));
          MR_RETURN_IF_ERROR(ChangedListShape(c));
          c->set_output(1, element);
          return absl::OkStatus();
        })
        .Gradient(+[](GradientContext* c) -> Status {
          if (!c->has_grad(0) && !c->has_grad(1)) return absl::OkStatus();
          const Scope& s = c->scope();
          const DType dtype = c->output(1).dtype();
          const Output list =
              c->has_grad(0)
                  ? c->dense_grad(0)
                  : TensorListReserve(s, TensorListElementShape(s, c->output(0), DT_INT32),
                                      TensorListLength(s, c->output(0)), dtype);
          c->set_input_grad(0, TensorListPushBack(s, list, c->dense_grad(1)));
          return absl::OkStatus();
        })
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          MR_ASSIGN_OR_RETURN(const TensorListView list, ListInput(*ctx, 0, "input_handle", dtype));
          if (list.elements.empty()) return InvalidArgument("Trying to pop from an empty list.");
          Tensor last = list.elements.back();
          MR_RETURN_IF_ERROR(list.CheckElement(last));
          if (!last.has_value()) {
            MR_ASSIGN_OR_RETURN(const PartialShape element, ElementShapeInput(*ctx, 1, list));
            const StatusOr<Shape> shape = element.ToShape();
            if (!shape.ok()) {
              return InvalidArgument(
                  "Trying to read an uninitialized tensor but element_shape is not fully defined: ",
                  element);
            }
            MR_ASSIGN_OR_RETURN(last, ZeroElement(ctx, dtype, *shape));
          }
          MR_ASSIGN_OR_RETURN(std::vector<Tensor>* const elements, OutputChanged(ctx));
          elements->pop_back();
          ctx->set_output(1, std::move(last));
          return absl::OkStatus();
        }));

// --- Items ---------------------------------------------------------------------------------------

const OpRegistration kSetItem =
    OpSpec("TensorListSetItem",
           "input_handle: variant, index: int32, item: element_dtype -> output_handle: variant",
           kListDtypeAttr)
        .With(LaterAttr("resize_if_index_out_of_bounds: bool = false"))
        .Shape([](InferenceContext* c) -> Status {
          MR_RETURN_IF_ERROR(c->InputWithRank(1, 0, "index").status());
          MR_RETURN_IF_ERROR(CheckItemShape(c, c->input(2)));
          return ChangedListShape(c);
        })
        .Gradient(+[](GradientContext* c) -> std::vector<Output> {
          const Scope& s = c->scope();
          const Output index = c->input(1), item = c->input(2);
          return {TensorListSetItem(s, c->dense_grad(), index, ZerosLike(s, item)), Output(),
                  TensorListGetItem(s, c->dense_grad(), index, ShapeOf(s, item), item.dtype())};
        })
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          MR_ASSIGN_OR_RETURN(const TensorListView list, ListInput(*ctx, 0, "input_handle", dtype));
          MR_ASSIGN_OR_RETURN(const int32_t index, ctx->ScalarInput<int32_t>(1, "index"));
          if (index < 0 || static_cast<size_t>(index) >= list.elements.size()) {
            return InvalidArgument("Trying to modify element ", index, " in a list with ",
                                   list.elements.size(), " elements.");
          }
          if (!list.spec.element_shape.IsCompatibleWith(ctx->input(2).shape())) {
            return InvalidArgument(
                "Tried to set a tensor with incompatible shape at a list index. Item element "
                "shape: ",
                ctx->input(2).shape(), " list shape: ", list.spec.element_shape);
          }
          if (dtype == DT_VARIANT) MR_RETURN_IF_ERROR(CheckTensorListNesting(ctx->input(2)));
          MR_ASSIGN_OR_RETURN(std::vector<Tensor>* const elements, OutputChanged(ctx));
          (*elements)[static_cast<size_t>(index)] = ctx->TakeInput(2);
          return absl::OkStatus();
        }));

// `shape` and what the elements that are set say besides it.
StatusOr<PartialShape> WithShapesOf(const TensorListView& list, PartialShape shape) {
  for (const Tensor& element : list.elements) {
    if (shape.IsFullyDefined()) break;
    if (element.has_value()) {
      MR_ASSIGN_OR_RETURN(shape, shape.MergeWith(element.shape()));
    }
  }
  return shape;
}

const OpRegistration kGetItem =
    OpSpec("TensorListGetItem",
           "input_handle: variant, index: int32, element_shape: int32 -> item: element_dtype",
           kListDtypeAttr)
        .Shape([](InferenceContext* c) -> Status {
          MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "input_handle").status());
          MR_RETURN_IF_ERROR(c->InputWithRank(1, 0, "index").status());
          MR_ASSIGN_OR_RETURN(PartialShape element, MergedListElementShape(c, 2));
          c->set_output(0, std::move(element));
          return absl::OkStatus();
        })
        .Gradient(+[](GradientContext* c) -> Output {
          const Scope& s = c->scope();
          const Output zeros = TensorListReserve(
              s, ElementShapeOfInput(c, 0), TensorListLength(s, c->input(0)), c->output(0).dtype());
          return TensorListSetItem(s, zeros, c->input(1), c->dense_grad());
        })
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          MR_ASSIGN_OR_RETURN(const TensorListView list, ListInput(*ctx, 0, "input_handle", dtype));
          MR_ASSIGN_OR_RETURN(const int32_t index, ctx->ScalarInput<int32_t>(1, "index"));
          if (index < 0 || static_cast<size_t>(index) >= list.elements.size()) {
            return InvalidArgument("Trying to access element ", index, " in a list with ",
                                   list.elements.size(), " elements.");
          }
          Tensor item = list.elements[static_cast<size_t>(index)];
          MR_RETURN_IF_ERROR(list.CheckElement(item));
          if (!item.has_value()) {
            MR_ASSIGN_OR_RETURN(PartialShape element, ElementShapeInput(*ctx, 2, list));
            MR_ASSIGN_OR_RETURN(element, WithShapesOf(list, std::move(element)));
            const StatusOr<Shape> shape = element.ToShape();
            if (!shape.ok()) {
              return InvalidArgument(
                  "Trying to read an uninitialized tensor but element_shape is not fully defined: ",
                  element, " and no list element is set.");
            }
            MR_ASSIGN_OR_RETURN(item, ZeroElement(ctx, dtype, *shape));
          }
          ctx->set_output(0, std::move(item));
          return absl::OkStatus();
        }));

const OpRegistration kResize =
    OpSpec("TensorListResize", "input_handle: variant, size: int32 -> output_handle: variant")
        .Stateful()
        .Shape([](InferenceContext* c) -> Status {
          MR_RETURN_IF_ERROR(c->InputWithRank(1, 0, "size").status());
          return ChangedListShape(c);
        })
        .Gradient(+[](GradientContext* c) -> Output {
          return TensorListResize(c->scope(), c->dense_grad(),
                                  TensorListLength(c->scope(), c->input(0)));
        })
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType) -> Status {
          MR_RETURN_IF_ERROR(ReadTensorList(ctx->input(0), "input_handle").status());
          MR_ASSIGN_OR_RETURN(const int32_t size, ctx->ScalarInput<int32_t>(1, "size"));
          if (size < 0) {
            return InvalidArgument("TensorListSlice expects size to be non-negative. Got: ", size);
          }
          MR_RETURN_IF_ERROR(CheckTensorListSize(size));
          MR_ASSIGN_OR_RETURN(std::vector<Tensor>* const elements, OutputChanged(ctx));
          elements->resize(static_cast<size_t>(size));
          return absl::OkStatus();
        }));

// --- About lists ---------------------------------------------------------------------------------

const OpRegistration kLength =
    OpSpec("TensorListLength", "input_handle: variant -> length: int32")
        .Shape(ScalarShape)
        .NotDifferentiable()
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType) -> Status {
          MR_ASSIGN_OR_RETURN(const TensorListView list,
                              ReadTensorList(ctx->input(0), "input_handle"));
          ctx->set_output(0, Tensor::Scalar(static_cast<int32_t>(list.elements.size())));
          return absl::OkStatus();
        }));

template <typename T>
Status RunElementShape(KernelContext* ctx, DType) {
  MR_ASSIGN_OR_RETURN(const TensorListView list, ReadTensorList(ctx->input(0), "input_handle"));
  const PartialShape& shape = list.spec.element_shape;
  if (!shape.has_rank()) {
    ctx->set_output(0, Tensor::Scalar<T>(-1));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(Tensor * out,
                      ctx->AllocateOutput(0, Shape::Vector(static_cast<size_t>(shape.rank()))));
  for (int i = 0; i < shape.rank(); ++i) {
    out->mutable_raw<T>()[static_cast<size_t>(i)] = static_cast<T>(shape.dim(i));
  }
  return absl::OkStatus();
}

const OpRegistration kElementShape =
    OpSpec("TensorListElementShape", "input_handle: variant -> element_shape: shape_type",
           "shape_type: {int32, int64}")
        .Shape([](InferenceContext* c) -> Status {
          // A vector, or a scalar for a list that knows nothing.
          const PartialShape element = KnownListElement(c, 0);
          c->set_output(0, element.has_rank() ? PartialShape({element.rank()}) : PartialShape());
          return absl::OkStatus();
        })
        .NotDifferentiable()
        .With(KernelFor<ListKernel>(&RunElementShape<int32_t>).Type<int32_t>("shape_type"))
        .With(KernelFor<ListKernel>(&RunElementShape<int64_t>).Type<int64_t>("shape_type"));

const OpRegistration kConcatLists =
    OpSpec("TensorListConcatLists", "input_a: variant, input_b: variant -> output: variant",
           kListDtypeAttr)
        .Shape([](InferenceContext* c) -> Status {
          MR_ASSIGN_OR_RETURN(PartialShape both, c->input(0).MergeWith(c->input(1)));
          c->set_output(0, std::move(both));
          if (c->input_handle(0)) c->set_output_handle(0, *c->input_handle(0));
          return absl::OkStatus();
        })
        .NotDifferentiable()
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          const Tensor& a = ctx->input(0);
          const Tensor& b = ctx->input(1);
          if (a.shape() != b.shape()) {
            return InvalidArgument("Incompatible input TensorList tensor shapes: ", a.shape(),
                                   " vs. ", b.shape());
          }
          MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, a.shape()));
          for (size_t i = 0; i < static_cast<size_t>(a.num_elements()); ++i) {
            MR_ASSIGN_OR_RETURN(const TensorListView first, ReadTensorList(a.raw<Variant>()[i]));
            MR_ASSIGN_OR_RETURN(const TensorListView second, ReadTensorList(b.raw<Variant>()[i]));
            for (const TensorListView* list : {&first, &second}) {
              if (list->spec.dtype == dtype) continue;
              return InvalidArgument(list == &first ? "input_a[" : "input_b[", i,
                                     "].dtype != element_dtype.  Saw: ", list->spec.dtype, " vs. ",
                                     dtype);
            }
            if (first.spec.element_shape != second.spec.element_shape) {
              return InvalidArgument(
                  "input_a and input_b TensorList element shapes are not identical at index ", i,
                  ".  Saw ", first.spec.element_shape, " vs. ", second.spec.element_shape);
            }
            MR_RETURN_IF_ERROR(CheckTensorListSize(
                static_cast<int64_t>(first.elements.size() + second.elements.size())));
            std::vector<Tensor> elements(first.elements.begin(), first.elements.end());
            elements.insert(elements.end(), second.elements.begin(), second.elements.end());
            out->mutable_raw<Variant>()[i] =
                MakeTensorList(first.spec, std::move(elements)).raw_scalar<Variant>();
          }
          return absl::OkStatus();
        }));

}  // namespace
}  // namespace millrace
