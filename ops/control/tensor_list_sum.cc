// SPDX-License-Identifier: Apache-2.0
//
// ZerosLike and AddN of lists: gradients of lists begin as zeros and are added up, as those of
// numbers are.

#include <utility>
#include <vector>

#include "ops/kernels/tensor_list.h"
#include "ops/kernels/tensor_list_op.h"
#include "ops/loops/binary.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Nothing in place of a list: what a branch that was not taken has (FakeParam). Its gradient is as
// little, and adds nothing.
bool IsNothing(const Variant& variant) { return variant.type_name.empty(); }

StatusOr<Variant> ZerosLikeList(KernelContext* ctx, const Variant& variant) {
  if (IsNothing(variant)) return variant;
  MR_ASSIGN_OR_RETURN(const TensorListView list, ReadTensorList(variant));
  std::vector<Tensor> zeros;
  for (const Tensor& element : list.elements) {
    zeros.emplace_back();
    if (!element.has_value()) continue;
    MR_RETURN_IF_ERROR(list.CheckElement(element));
    if (element.dtype() != DT_VARIANT) {
      MR_ASSIGN_OR_RETURN(zeros.back(), ZeroElement(ctx, element.dtype(), element.shape()));
      continue;
    }
    MR_ASSIGN_OR_RETURN(zeros.back(), Tensor::Allocate(DT_VARIANT, element.shape()));
    for (size_t i = 0; i < static_cast<size_t>(element.num_elements()); ++i) {
      MR_ASSIGN_OR_RETURN(zeros.back().mutable_raw<Variant>()[i],
                          ZerosLikeList(ctx, element.raw<Variant>()[i]));
    }
  }
  return MakeTensorList(list.spec, std::move(zeros)).raw_scalar<Variant>();
}

class ZerosLikeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, ctx->input(0).shape()));
    for (size_t i = 0; i < static_cast<size_t>(out->num_elements()); ++i) {
      MR_ASSIGN_OR_RETURN(out->mutable_raw<Variant>()[i],
                          ZerosLikeList(ctx, ctx->input(0).raw<Variant>()[i]));
    }
    return absl::OkStatus();
  }
};
const KernelRegistration kZerosLike("ZerosLike", KernelFor<ZerosLikeKernel>().Type<Variant>("T"));

StatusOr<Variant> AddLists(KernelContext* ctx, const Variant& a, const Variant& b);

StatusOr<Tensor> AddElements(KernelContext* ctx, const Tensor& a, const Tensor& b) {
  if (!a.has_value()) return b;
  if (!b.has_value()) return a;
  if (a.shape() != b.shape()) {
    return InvalidArgument("Trying to add two tensors with incompatible element shapes. One is ",
                           a.shape(), " and the other is ", b.shape());
  }
  if (a.dtype() == DT_VARIANT) {
    MR_ASSIGN_OR_RETURN(Tensor sum, Tensor::Allocate(DT_VARIANT, a.shape()));
    for (size_t i = 0; i < static_cast<size_t>(a.num_elements()); ++i) {
      MR_ASSIGN_OR_RETURN(sum.mutable_raw<Variant>()[i],
                          AddLists(ctx, a.raw<Variant>()[i], b.raw<Variant>()[i]));
    }
    return sum;
  }
  const math::BinaryFn add = math::FindBinary(math::BinaryOp::kAdd, a.dtype());
  if (add == nullptr || a.dtype() == DT_STRING) {
    return Unimplemented("elements of type ", a.dtype(), " cannot be added");
  }
  MR_ASSIGN_OR_RETURN(Tensor sum, ctx->AllocateTemp(a.dtype(), a.shape()));
  add(a.raw_data(), false, b.raw_data(), false, sum.mutable_raw_data(), a.num_elements());
  return sum;
}

StatusOr<Variant> AddLists(KernelContext* ctx, const Variant& a, const Variant& b) {
  if (IsNothing(a)) return b;
  if (IsNothing(b)) return a;
  MR_ASSIGN_OR_RETURN(const TensorListView x, ReadTensorList(a));
  MR_ASSIGN_OR_RETURN(const TensorListView y, ReadTensorList(b));
  if (x.spec.dtype != y.spec.dtype) {
    return InvalidArgument("Trying to add two lists of tensors of different dtypes. One is ",
                           x.spec.dtype, " and the other is ", y.spec.dtype);
  }
  if (x.elements.size() != y.elements.size()) {
    return InvalidArgument("Trying to add two lists of tensors with different lengths. One is ",
                           x.elements.size(), " and the other is ", y.elements.size());
  }
  TensorListSpec spec = {.dtype = x.spec.dtype};
  StatusOr<PartialShape> shape = x.spec.element_shape.MergeWith(y.spec.element_shape);
  if (!shape.ok()) {
    return InvalidArgument(
        "Trying to add two lists of tensors with incompatible element shapes. One is ",
        x.spec.element_shape, " and the other is ", y.spec.element_shape);
  }
  spec.element_shape = *std::move(shape);
  std::vector<Tensor> sums;
  for (size_t i = 0; i < x.elements.size(); ++i) {
    MR_RETURN_IF_ERROR(x.CheckElement(x.elements[i]));
    MR_RETURN_IF_ERROR(x.CheckElement(y.elements[i]));
    MR_ASSIGN_OR_RETURN(Tensor sum, AddElements(ctx, x.elements[i], y.elements[i]));
    sums.push_back(std::move(sum));
  }
  return MakeTensorList(spec, std::move(sums)).raw_scalar<Variant>();
}

class AddNKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Shape& shape = ctx->input(0).shape();
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      if (ctx->input(i).shape() == shape) continue;
      return InvalidArgument("inputs must have one shape, got ", shape, " and ",
                             ctx->input(i).shape());
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    for (size_t at = 0; at < static_cast<size_t>(out->num_elements()); ++at) {
      Variant sum = ctx->input(0).raw<Variant>()[at];
      if (!IsNothing(sum)) MR_RETURN_IF_ERROR(ReadTensorList(sum).status());
      for (int i = 1; i < ctx->num_inputs(); ++i) {
        MR_ASSIGN_OR_RETURN(sum, AddLists(ctx, sum, ctx->input(i).raw<Variant>()[at]));
      }
      out->mutable_raw<Variant>()[at] = std::move(sum);
    }
    return absl::OkStatus();
  }
};
const KernelRegistration kAddN("AddN", KernelFor<AddNKernel>().Type<Variant>("T"));

}  // namespace
}  // namespace millrace
