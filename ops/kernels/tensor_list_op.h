// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_TENSOR_LIST_OP_H_
#define MILLRACE_OPS_KERNELS_TENSOR_LIST_OP_H_

// What the ops on tensor lists have in common: reading their inputs, in a step and while the graph
// is built, and a kernel that is one function.
//
// In the graph a list carries what is known of its elements as a resource carries what it holds
// (InferenceContext::input_handle).

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/shape_inference.h"
#include "ops/kernels/tensor_list.h"
#include "runtime/kernel.h"

namespace millrace {

// The list at input i; its elements must be of `dtype`, that of the op.
inline StatusOr<TensorListView> ListInput(const KernelContext& ctx, int i, absl::string_view name,
                                          DType dtype) {
  MR_ASSIGN_OR_RETURN(TensorListView list, ReadTensorList(ctx.input(i), name));
  if (list.spec.dtype == dtype) return list;
  return InvalidArgument("Invalid data types; op elements ", dtype, " but list elements ",
                         list.spec.dtype);
}

// What input i and the list say of its elements.
inline StatusOr<PartialShape> ElementShapeInput(const KernelContext& ctx, int i,
                                                const TensorListView& list) {
  MR_ASSIGN_OR_RETURN(const PartialShape shape, ElementShapeOf(ctx.input(i)));
  return shape.MergeWith(list.spec.element_shape);
}

// Input 0 as output 0, to be changed.
inline StatusOr<std::vector<Tensor>*> OutputChanged(KernelContext* ctx) {
  ctx->set_output(0, ctx->TakeInput(0));
  return MutableTensorList(ctx->mutable_output(0));
}

inline StatusOr<Tensor> ZeroElement(KernelContext* ctx, DType dtype, const Shape& shape) {
  if (dtype == DT_VARIANT || dtype == DT_RESOURCE) {
    return Unimplemented("elements of type ", dtype, " have no zeros");
  }
  MR_ASSIGN_OR_RETURN(Tensor zeros, ctx->AllocateTemp(dtype, shape));
  const absl::Span<char> bytes = zeros.mutable_bytes();
  std::fill(bytes.begin(), bytes.end(), '\0');
  return zeros;
}

// What is known of an element of the list at input i while the graph is built.
inline PartialShape KnownListElement(InferenceContext* c, int i) {
  return c->input_handle(i) ? c->input_handle(i)->shape : PartialShape();
}

// The element shape that input i describes, merged with what is known of the list at input 0.
inline StatusOr<PartialShape> ListElementShape(InferenceContext* c, int i) {
  PartialShape shape;
  if (c->input(i).has_rank() && c->input(i).rank() == 0) {
    if (const Tensor* value = c->input_tensor(i)) {
      MR_ASSIGN_OR_RETURN(shape, ElementShapeOf(*value));
    }
  } else if (c->input(i).has_rank()) {
    MR_ASSIGN_OR_RETURN(shape, c->input_as_shape(i));
  }
  return shape;
}
inline StatusOr<PartialShape> MergedListElementShape(InferenceContext* c, int i) {
  MR_ASSIGN_OR_RETURN(const PartialShape shape, ListElementShape(c, i));
  return shape.MergeWith(KnownListElement(c, 0));
}

// An op whose kernel reads the attr element_dtype, where it has one, and is one function.
class ListKernel : public Kernel {
 public:
  using Function = Status (*)(KernelContext* ctx, DType element_dtype);
  explicit ListKernel(Function run) : run_(run) {}
  Status Init(KernelConstruction* c) override {
    if (!HasAttr(c->node(), "element_dtype")) return absl::OkStatus();
    return ReadAttrs(c->attrs(), "element_dtype", &dtype_);
  }
  Status Compute(KernelContext* ctx) const override { return run_(ctx, dtype_); }
  bool may_be_expensive() const override { return false; }

 private:
  const Function run_;
  DType dtype_ = DT_INVALID;
};

inline constexpr char kListShapeTypeAttrs[] = "element_dtype: type; shape_type: {int32, int64}";
inline constexpr char kListDtypeAttr[] = "element_dtype: type";

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_TENSOR_LIST_OP_H_
