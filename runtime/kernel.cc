// SPDX-License-Identifier: Apache-2.0
#include "runtime/kernel.h"

namespace millrace {
namespace {

Status OutOfMemory(absl::string_view what, DType dtype, const Shape& shape, const Status& cause) {
  if (!absl::IsResourceExhausted(cause)) return Prefixed(what, cause);
  return absl::ResourceExhaustedError(
      absl::StrCat("OOM when allocating ", what, " with shape ", shape.ToString(), " and type ",
                   DTypeName(dtype), " (",
                   shape.num_elements() * static_cast<int64_t>(DTypeSize(dtype)), " bytes)"));
}

// Can an output of this type and shape live in the memory of `input`?
bool CanForward(const EdgeValue& input, DType dtype, const Shape& shape) {
  if (!input.has_value || input.ref != nullptr) return false;
  const Tensor& t = input.tensor;
  if (t.num_elements() != shape.num_elements() || !t.BufferIsUnique()) return false;
  if (t.dtype() == dtype) return true;
  return IsMemcopyable(dtype) && IsMemcopyable(t.dtype()) &&
         DTypeSize(dtype) == DTypeSize(t.dtype());
}

StatusOr<Tensor> SameMemory(const Tensor& t, DType dtype, const Shape& shape) {
  if (t.dtype() == dtype) return t.Reshaped(shape);
  const size_t offset = static_cast<size_t>(static_cast<const char*>(t.raw_data()) -
                                            static_cast<const char*>(t.buffer()->data()));
  return Tensor::FromBuffer(dtype, shape, t.buffer(), offset);
}

}  // namespace

StatusOr<std::shared_ptr<VariableStorage>> KernelContext::ref_input(int i) const {
  const EdgeValue& in = p_.inputs[static_cast<size_t>(i)];
  if (in.ref == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", i, " must be a reference to a variable, got a ",
                     in.has_value ? DTypeName(in.tensor.dtype()) : "dead", " tensor"));
  }
  return in.ref;
}

StatusOr<std::vector<int64_t>> KernelContext::IntVectorInput(int i, absl::string_view name) const {
  const Tensor& t = input(i);
  if (!t.shape().is_vector()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must be a vector, got shape ", t.shape().ToString()));
  }
  if (t.dtype() == DT_INT64) {
    const absl::Span<const int64_t> values = t.raw<int64_t>();
    return std::vector<int64_t>(values.begin(), values.end());
  }
  if (t.dtype() == DT_INT32) {
    const absl::Span<const int32_t> values = t.raw<int32_t>();
    return std::vector<int64_t>(values.begin(), values.end());
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be int32 or int64, got ", DTypeName(t.dtype())));
}

StatusOr<int64_t> KernelContext::IntScalarInput(int i, absl::string_view name) const {
  const Tensor& t = input(i);
  if (!t.shape().is_scalar()) return NotScalar(i, name);
  if (t.dtype() == DT_INT64) return t.raw_scalar<int64_t>();
  if (t.dtype() == DT_INT32) return int64_t{t.raw_scalar<int32_t>()};
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be int32 or int64, got ", DTypeName(t.dtype())));
}

StatusOr<Tensor*> KernelContext::AllocateOutput(int i, const Shape& shape) {
  const DType dtype = WithoutRef(p_.output_types[static_cast<size_t>(i)]);
  StatusOr<Tensor> fresh = Tensor::Allocate(dtype, shape);
  if (!fresh.ok()) {
    return OutOfMemory(absl::StrCat("output ", i), dtype, shape, fresh.status());
  }
  set_output(i, *std::move(fresh));
  return mutable_output(i);
}

StatusOr<Tensor*> KernelContext::ForwardInputOrAllocateOutput(std::initializer_list<int> candidates,
                                                              int i, const Shape& shape) {
  const DType dtype = WithoutRef(p_.output_types[static_cast<size_t>(i)]);
  for (const int candidate : candidates) {
    const EdgeValue& in = p_.inputs[static_cast<size_t>(candidate)];
    if (!CanForward(in, dtype, shape)) continue;
    MR_ASSIGN_OR_RETURN(Tensor same, SameMemory(in.tensor, dtype, shape));
    set_output(i, std::move(same));
    return mutable_output(i);
  }
  return AllocateOutput(i, shape);
}

StatusOr<Tensor> KernelContext::AllocateTemp(DType dtype, const Shape& shape) {
  StatusOr<Tensor> fresh = Tensor::Allocate(dtype, shape);
  if (!fresh.ok()) return OutOfMemory("scratch memory", dtype, shape, fresh.status());
  return fresh;
}

Status KernelContext::NotScalar(int i, absl::string_view name) const {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be a scalar, got shape ", input(i).shape().ToString()));
}

Status KernelContext::CheckHandleInput(int i) const {
  const Tensor& t = input(i);
  if (t.dtype() != DT_RESOURCE || t.num_elements() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", i, " must be one resource handle, got ", DTypeName(t.dtype()),
                     " of shape ", t.shape().ToString()));
  }
  return absl::OkStatus();
}

Status AsyncKernel::Compute(KernelContext*) const {
  return absl::InternalError("an asynchronous kernel was run synchronously");
}

}  // namespace millrace
