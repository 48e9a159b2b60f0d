// SPDX-License-Identifier: Apache-2.0
//
// The elements of a list as one tensor: stacked, gathered, concatenated.

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/control/tensor_list.h"
#include "ops/kernels/tensor_list.h"
#include "ops/kernels/tensor_list_op.h"
#include "ops/math/segment.h"
#include "ops/rules/elements.h"
#include "ops/rules/rows.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// In gradients: what the list at input i knows of its elements.
Output ElementShapeOfInput(GradientContext* c, int i) {
  return TensorListElementShape(c->scope(), c->input(i), DT_INT32);
}
// --- Elements as one tensor ----------------------------------------------------------------------

// Output 0 of `shape` is the elements one behind the other; those without value are zeros, of the
// number of elements that `sizes` has for them.
Status OutputJoined(KernelContext* ctx, const Shape& shape,
                    absl::Span<const Tensor* const> elements, absl::Span<const int64_t> sizes) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
  if (out->num_elements() == 0) return absl::OkStatus();
  std::vector<int64_t> begins;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    begins.push_back(begin);
    begin += size;
  }
  if (out->dtype() == DT_VARIANT || out->dtype() == DT_RESOURCE) {
    for (const Tensor* element : elements) {
      if (!element->has_value()) {
        return Unimplemented("elements of type ", out->dtype(), " have no zeros");
      }
    }
  }
  return VisitElements(out->dtype(), [&]<typename E>() {
    E* const to = MutableElementsOf<E>(out);
    const int64_t n = static_cast<int64_t>(elements.size());
    const double cost_ns =
        10 + 0.1 * static_cast<double>(out->num_elements() / n) * static_cast<double>(sizeof(E));
    ctx->ParallelFor(n, cost_ns, [&](int64_t first, int64_t end) {
      for (size_t i = static_cast<size_t>(first); i < static_cast<size_t>(end); ++i) {
        E* const at = to + begins[i];
        if (elements[i]->has_value()) {
          const E* const from = ElementsOf<E>(*elements[i]);
          std::copy(from, from + sizes[i], at);
        } else {
          std::fill(at, at + sizes[i], E());
        }
      }
    });
  });
}

// Elements of one shape as rows of output 0. `element` is what is known of them.
Status OutputRows(KernelContext* ctx, const TensorListView& list, PartialShape element,
                  absl::Span<const Tensor* const> rows, absl::string_view what) {
  for (const Tensor* row : rows) {
    if (!row->has_value()) continue;
    MR_RETURN_IF_ERROR(list.CheckElement(*row));
    MR_ASSIGN_OR_RETURN(element, element.MergeWith(row->shape()));
  }
  const StatusOr<Shape> shape = element.ToShape();
  if (!shape.ok()) {
    return InvalidArgument(what, " with non-fully-defined element_shape: ", element);
  }
  MR_ASSIGN_OR_RETURN(const Shape all, ShapeOfRows(static_cast<int64_t>(rows.size()), *shape));
  return OutputJoined(ctx, all, rows, std::vector<int64_t>(rows.size(), shape->num_elements()));
}

class StackKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "element_dtype", &dtype_, "num_elements", &num_elements_);
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const TensorListView list, ListInput(*ctx, 0, "input_handle", dtype_));
    if (num_elements_ != -1 && static_cast<int64_t>(list.elements.size()) != num_elements_) {
      return InvalidArgument("Operation expected a list with ", num_elements_,
                             " elements but got a list with ", list.elements.size(), " elements.");
    }
    MR_ASSIGN_OR_RETURN(PartialShape element, ElementShapeInput(*ctx, 1, list));
    if (list.elements.empty() && !element.IsFullyDefined()) {
      return InvalidArgument(
          "Tried to stack elements of an empty list with non-fully-defined element_shape: ",
          element);
    }
    std::vector<const Tensor*> rows;
    for (const Tensor& row : list.elements) rows.push_back(&row);
    return OutputRows(ctx, list, std::move(element), rows,
                      "Tried to stack list which only contains uninitialized tensors and is");
  }

 private:
  DType dtype_ = DT_INVALID;
  int64_t num_elements_ = -1;
};

const OpRegistration kStack =
    OpSpec("TensorListStack",
           "input_handle: variant, element_shape: int32 -> tensor: element_dtype",
           "element_dtype: type; num_elements: int = -1")
        .Shape([](InferenceContext* c) -> Status {
          MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "input_handle").status());
          MR_ASSIGN_OR_RETURN(const PartialShape element, MergedListElementShape(c, 1));
          MR_ASSIGN_OR_RETURN(const int64_t n, c->GetAttr<int64_t>("num_elements"));
          if (n < -1) return InvalidArgument("num_elements must be >= -1, got ", n);
          c->set_output(0, ShapeOfRows(n, element));
          return absl::OkStatus();
        })
        .Gradient(+[](GradientContext* c) -> Output {
          return TensorListFromTensor(c->scope(), c->dense_grad(), ElementShapeOfInput(c, 0));
        })
        .With(KernelFor<StackKernel>());

const OpRegistration kGather =
    OpSpec("TensorListGather",
           "input_handle: variant, indices: int32, element_shape: int32 -> values: element_dtype",
           kListDtypeAttr)
        .Shape([](InferenceContext* c) -> Status {
          MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "input_handle").status());
          MR_ASSIGN_OR_RETURN(const PartialShape indices, c->InputWithRank(1, 1, "indices"));
          MR_ASSIGN_OR_RETURN(const PartialShape element, MergedListElementShape(c, 2));
          c->set_output(0, ShapeOfRows(indices.dim(0), element));
          return absl::OkStatus();
        })
        .Gradient(+[](GradientContext* c) -> Output {
          // An element that was gathered several times gets the sum, which each of its rows brings.
          const Scope& s = c->scope();
          const Output indices = c->input(1), size = TensorListLength(s, c->input(0));
          const Output sums = UnsortedSegmentSum(s, c->dense_grad(), indices, size);
          return TensorListScatterV2(s, GatherV2(s, sums, indices, Const(s, 0)), indices,
                                     ElementShapeOfInput(c, 0), size);
        })
        .With(KernelFor<ListKernel>(+[](KernelContext* ctx, DType dtype) -> Status {
          MR_ASSIGN_OR_RETURN(const TensorListView list, ListInput(*ctx, 0, "input_handle", dtype));
          const Tensor& indices = ctx->input(1);
          if (indices.rank() != 1) {
            return InvalidArgument("Expected indices to be a vector, but received shape: ",
                                   indices.shape());
          }
          MR_ASSIGN_OR_RETURN(PartialShape element, ElementShapeInput(*ctx, 2, list));
          if (indices.num_elements() == 0 && !element.IsFullyDefined()) {
            return InvalidArgument(
                "Tried to gather 0-elements from a list with non-fully-defined shape: ", element);
          }
          std::vector<const Tensor*> rows;
          for (const int32_t index : indices.raw<int32_t>()) {
            if (index < 0 || static_cast<size_t>(index) >= list.elements.size()) {
              return InvalidArgument("Index ", index, " out o range; list only has ",
                                     list.elements.size(), " elements.");
            }
            rows.push_back(&list.elements[static_cast<size_t>(index)]);
          }
          return OutputRows(ctx, list, std::move(element), rows,
                            "Tried to gather uninitialized tensors from a list");
        }));

// --- Concat --------------------------------------------------------------------------------------

// What is known of the elements but their first dimension.
StatusOr<PartialShape> ExceptFirst(const PartialShape& element) {
  if (!element.has_rank()) return element;
  if (element.rank() == 0) {
    return InvalidArgument(
        "Concat requires elements to be at least vectors, found scalars instead.");
  }
  return PartialShape::Make(element.dims().subspan(1));
}

// V2 has the shape and the lengths of elements that are not set as inputs.
class ConcatKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "element_dtype", &dtype_));
    if (c->num_inputs() > 1) return absl::OkStatus();
    return ReadAttrs(c->attrs(), "element_shape", &element_shape_);
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const TensorListView list, ListInput(*ctx, 0, "input_handle", dtype_));
    const bool is_v2 = ctx->num_inputs() > 1;
    PartialShape element = element_shape_;
    if (is_v2) {
      MR_ASSIGN_OR_RETURN(element, ElementShapeInput(*ctx, 1, list));
    }
    MR_ASSIGN_OR_RETURN(PartialShape rest, ExceptFirst(element));
    int64_t first = element.has_rank() ? element.dim(0) : -1;
    if (list.elements.empty() && !rest.IsFullyDefined()) {
      return InvalidArgument(
          "All except the first dimension must be fully defined when concating an empty tensor "
          "list. element_shape: ",
          rest);
    }
    bool is_same = true;  // so far
    int64_t common = first;
    for (size_t i = 0; i < list.elements.size(); ++i) {
      const Tensor& tensor = list.elements[i];
      if (!tensor.has_value()) continue;
      MR_RETURN_IF_ERROR(list.CheckElement(tensor));
      if (tensor.rank() == 0) {
        return InvalidArgument("Concat saw a scalar shape at index ", i,
                               " but requires at least vectors.");
      }
      MR_ASSIGN_OR_RETURN(rest, rest.MergeWith(tensor.shape().WithoutDim(0)));
      if (first != -1 && first != tensor.dim(0)) {
        return InvalidArgument(
            "First entry of element_shape input does not match the first dim of list element at "
            "index: ",
            i, " Expected: ", first, " Actual: ", tensor.dim(0));
      }
      if (common == -1) common = tensor.dim(0);
      is_same = is_same && common == tensor.dim(0);
    }
    if (first == -1 && is_same) first = common;
    const StatusOr<Shape> row = rest.ToShape();
    if (!row.ok()) {
      return InvalidArgument(
          "Trying to concat list with only uninitialized tensors but "
          "element_shape_except_first_dim_ is not fully defined: ",
          rest);
    }
    MR_ASSIGN_OR_RETURN(Tensor * lengths,
                        ctx->AllocateOutput(1, Shape::Vector(list.elements.size())));
    std::vector<const Tensor*> parts;
    std::vector<int64_t> sizes, dims = {0};
    for (size_t i = 0; i < list.elements.size(); ++i) {
      const Tensor& tensor = list.elements[i];
      int64_t length = first;
      if (tensor.has_value()) {
        length = tensor.dim(0);
      } else if (is_v2 && static_cast<int64_t>(i) < ctx->input(2).num_elements()) {
        length = ctx->input(2).raw<int64_t>()[i];
      } else if (first == -1 && !is_v2) {
        return InvalidArgument(
            "Concating lists with uninitialized tensors is not supported in this version of "
            "TensorListConcat. Consider updating your GraphDef to run the newer version.");
      } else if (first == -1) {
        return InvalidArgument("List contains uninitialized tensor at index ", i,
                               " but leading_dims has only ", ctx->input(2).num_elements(),
                               " elements.");
      }
      if (length < 0) return InvalidArgument("leading_dims must be >= 0, got ", length);
      lengths->mutable_raw<int64_t>()[i] = length;
      MR_ASSIGN_OR_RETURN(const int64_t size, CheckedProduct(length, row->num_elements()));
      parts.push_back(&tensor);
      sizes.push_back(size);
      dims[0] += length;
      if (dims[0] > Shape::kMaxElements) {
        return InvalidArgument("the elements must have at most ", Shape::kMaxElements,
                               " rows, got ", dims[0]);
      }
    }
    dims.insert(dims.end(), row->dims().begin(), row->dims().end());
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    return OutputJoined(ctx, shape, parts, sizes);
  }

 private:
  DType dtype_ = DT_INVALID;
  PartialShape element_shape_;
};

Status ConcatGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  c->set_input_grad(
      0, TensorListSplit(c->scope(), c->dense_grad(), ElementShapeOfInput(c, 0), c->output(1)));
  return absl::OkStatus();
}

Status ConcatShape(InferenceContext* c, const PartialShape& element) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "input_handle").status());
  MR_ASSIGN_OR_RETURN(const PartialShape rest, ExceptFirst(element));
  c->set_output(0, ShapeOfRows(-1, rest));
  c->set_output(1, PartialShape({-1}));
  return absl::OkStatus();
}

const OpRegistration kConcat =
    OpSpec("TensorListConcat", "input_handle: variant -> tensor: element_dtype, lengths: int64",
           "element_dtype: type; element_shape: shape = { unknown_rank: true }")
        .Shape([](InferenceContext* c) -> Status {
          MR_ASSIGN_OR_RETURN(PartialShape element, c->GetAttr<PartialShape>("element_shape"));
          MR_ASSIGN_OR_RETURN(element, element.MergeWith(KnownListElement(c, 0)));
          return ConcatShape(c, element);
        })
        .Gradient(ConcatGradient)
        .With(KernelFor<ConcatKernel>());
const OpRegistration kConcatV2 =
    OpSpec("TensorListConcatV2",
           "input_handle: variant, element_shape: shape_type, leading_dims: int64 -> "
           "tensor: element_dtype, lengths: int64",
           kListShapeTypeAttrs)
        .Shape([](InferenceContext* c) -> Status {
          MR_RETURN_IF_ERROR(c->InputWithRank(2, 1, "leading_dims").status());
          MR_ASSIGN_OR_RETURN(const PartialShape element, MergedListElementShape(c, 1));
          return ConcatShape(c, element);
        })
        .Gradient(ConcatGradient)
        .With(KernelFor<ConcatKernel>());

}  // namespace
}  // namespace millrace
