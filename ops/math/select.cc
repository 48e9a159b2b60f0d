// SPDX-License-Identifier: Apache-2.0
#include "ops/math/select.h"

#include <algorithm>
#include <string>

#include "graph/gradient.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/loops/binary.h"
#include "ops/math/broadcast_gradient.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Select --------------------------------------------------------------------------------------

// The only place that knows which (condition, t, e) shapes are legal: the shape of the result.
StatusOr<PartialShape> SelectedShape(const PartialShape& condition, const PartialShape& t,
                                     const PartialShape& e) {
  StatusOr<PartialShape> merged = t.MergeWith(e);
  if (!merged.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'then' and 'else' must have the same size, but received: ", t.ToString(),
                     " vs. ", e.ToString()));
  }
  if (!condition.has_rank() || condition.rank() == 0) return merged;
  if (!merged->has_rank()) {
    // A condition of rank above 1 has the shape of the values; a vector may choose rows.
    if (condition.rank() > 1) return condition;
    return merged;
  }
  if (condition.rank() == 1 && merged->rank() >= 1) {
    const int64_t rows = merged->dim(0);
    if (rows != condition.dim(0) && rows >= 0 && condition.dim(0) >= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("Number of batches of 'then' must match size of 'cond', but saw: ", rows,
                       " vs. ", condition.dim(0)));
    }
    if (rows < 0 && condition.dim(0) >= 0) {
      std::vector<int64_t> dims(merged->dims().begin(), merged->dims().end());
      dims[0] = condition.dim(0);
      return PartialShape::Make(dims);
    }
    return merged;
  }
  StatusOr<PartialShape> all = merged->MergeWith(condition);
  if (!all.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the condition must be a scalar, a vector or have "
                     "the shape of 'then', ",
                     merged->ToString(), ", got ", condition.ToString()));
  }
  return all;
}

Status SelectShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, SelectedShape(c->input(0), c->input(1), c->input(2)));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename T>
void SelectElements(const bool* condition, const Tensor& t, const Tensor& e, Tensor* out,
                    int64_t begin, int64_t end) {
  const T* ts = static_cast<const T*>(t.raw_data());
  const T* es = static_cast<const T*>(e.raw_data());
  T* os = static_cast<T*>(out->mutable_raw_data());
  for (int64_t i = begin; i < end; ++i) os[i] = condition[i] ? ts[i] : es[i];
}

// Rows [begin, end) of `row` elements.
template <typename T>
void SelectRows(const bool* condition, int64_t row, const Tensor& t, const Tensor& e, Tensor* out,
                int64_t begin, int64_t end) {
  const T* ts = static_cast<const T*>(t.raw_data());
  const T* es = static_cast<const T*>(e.raw_data());
  T* os = static_cast<T*>(out->mutable_raw_data());
  for (int64_t i = begin; i < end; ++i) {
    std::copy_n((condition[i] ? ts : es) + i * row, row, os + i * row);
  }
}

struct Bytes16 {
  uint64_t low, high;
};

// body(T()) with a type of the element's size, or the element type itself.
template <typename Body>
void WithElementType(DType dtype, Body body) {
  switch (dtype) {
    case DT_STRING:
      return body(std::string());
    case DT_RESOURCE:
      return body(ResourceHandle());
    case DT_VARIANT:
      return body(Variant());
    default:
      break;
  }
  switch (DTypeSize(dtype)) {
    case 1:
      return body(uint8_t());
    case 2:
      return body(uint16_t());
    case 4:
      return body(uint32_t());
    case 8:
      return body(uint64_t());
    default:
      return body(Bytes16());
  }
}

class SelectKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& condition = ctx->input(0);
    const Tensor& t = ctx->input(1);
    const Tensor& e = ctx->input(2);
    MR_RETURN_IF_ERROR(SelectedShape(condition.shape(), t.shape(), e.shape()).status());
    const bool* flags = condition.raw<bool>().data();
    if (condition.shape().is_scalar()) {
      ctx->set_output(0, ctx->TakeInput(*flags ? 1 : 2));
      return absl::OkStatus();
    }
    const DType dtype = t.dtype();
    if (condition.shape() == t.shape()) {
      MR_ASSIGN_OR_RETURN(Tensor * out, IsMemcopyable(dtype) ? ctx->ForwardInputOrAllocateOutput(
                                                                   {1, 2}, 0, t.shape())
                                                             : ctx->AllocateOutput(0, t.shape()));
      ctx->ParallelFor(t.num_elements(), 0.5, [&](int64_t begin, int64_t end) {
        WithElementType(dtype, [&](auto type) {
          SelectElements<decltype(type)>(flags, t, e, out, begin, end);
        });
      });
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, t.shape()));
    const int64_t row = t.shape().NumElements(1, t.rank());
    ctx->ParallelFor(t.dim(0), 5 + 0.3 * static_cast<double>(row), [&](int64_t begin, int64_t end) {
      WithElementType(
          dtype, [&](auto type) { SelectRows<decltype(type)>(flags, row, t, e, out, begin, end); });
    });
    return absl::OkStatus();
  }
};

// The gradient goes where the value came from.
Status SelectGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output grad = c->dense_grad();
  const Output zeros = ZerosLike(s, grad);
  c->set_input_grad(1, Select(s, c->input(0), grad, zeros));
  c->set_input_grad(2, Select(s, c->input(0), zeros, grad));
  return absl::OkStatus();
}

const OpRegistration kSelect = OpSpec("Select")
                                   .Input("condition: bool")
                                   .Input("t: T")
                                   .Input("e: T")
                                   .Output("output: T")
                                   .Attr("T: type")
                                   .Shape(SelectShape)
                                   .Gradient(SelectGradient);
const KernelRegistration kSelectKernel = KernelFor<SelectKernel>("Select");

// --- ClipByValue ---------------------------------------------------------------------------------

// The only place that knows which bounds are legal.
Status CheckBound(const PartialShape& t, const PartialShape& bound, absl::string_view name) {
  if (!bound.has_rank() || bound.rank() == 0) return absl::OkStatus();
  if (t.IsCompatibleWith(bound)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be a scalar or have the shape of t, ",
                                                 t.ToString(), ", got ", bound.ToString()));
}

Status ClipShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckBound(c->input(0), c->input(1), "clip_value_min"));
  MR_RETURN_IF_ERROR(CheckBound(c->input(0), c->input(2), "clip_value_max"));
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

class ClipByValueKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    const DType dtype = WithoutRef(c->input_type(0));
    max_ = math::FindBinary(math::BinaryOp::kMaximum, dtype);
    min_ = math::FindBinary(math::BinaryOp::kMinimum, dtype);
    if (max_ == nullptr || min_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype)));
    }
    size_ = static_cast<int64_t>(DTypeSize(dtype));
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const Tensor& t = ctx->input(0);
    const Tensor& low = ctx->input(1);
    const Tensor& high = ctx->input(2);
    MR_RETURN_IF_ERROR(CheckBound(t.shape(), low.shape(), "clip_value_min"));
    MR_RETURN_IF_ERROR(CheckBound(t.shape(), high.shape(), "clip_value_max"));
    const char* ts = static_cast<const char*>(t.raw_data());
    const char* lows = static_cast<const char*>(low.raw_data());
    const char* highs = static_cast<const char*>(high.raw_data());
    const bool low_is_scalar = low.shape().is_scalar();
    const bool high_is_scalar = high.shape().is_scalar();
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0, t.shape()));
    char* os = static_cast<char*>(out->mutable_raw_data());
    ctx->ParallelFor(t.num_elements(), 0.5, [&](int64_t begin, int64_t end) {
      constexpr int64_t kBlock = 4096;  // both passes in the cache
      for (int64_t from = begin; from < end; from += kBlock) {
        const int64_t n = std::min(kBlock, end - from);
        const int64_t at = from * size_;
        min_(ts + at, false, high_is_scalar ? highs : highs + at, high_is_scalar, os + at, n);
        max_(os + at, false, low_is_scalar ? lows : lows + at, low_is_scalar, os + at, n);
      }
    });
    return absl::OkStatus();
  }

 private:
  math::BinaryFn max_ = nullptr;
  math::BinaryFn min_ = nullptr;
  int64_t size_ = 0;
};

// The gradient goes to t where it is within the bounds, else to the bound that replaced it.
Status ClipByValueGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output grad = c->dense_grad();
  const Output zeros = ZerosLike(s, grad);
  const Output below = Less(s, c->input(0), c->input(1));
  const Output above = Greater(s, c->input(0), c->input(2));
  const Output replaced = LogicalOr(s, below, above);
  c->set_input_grad(0, Select(s, replaced, zeros, grad));
  const auto bound_grad = [&](Output chosen, int i) {
    return SumToInput(s, Select(s, chosen, grad, zeros), c->input(i), c->input(0));
  };
  c->set_input_grad(1, bound_grad(below, 1));
  c->set_input_grad(2, bound_grad(above, 2));
  return absl::OkStatus();
}

const OpRegistration kClipByValue =
    OpSpec("ClipByValue")
        .Input("t: T")
        .Input("clip_value_min: T")
        .Input("clip_value_max: T")
        .Output("output: T")
        .Attr(
            "T: {float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, "
            "qint32, bfloat16, uint16, complex128, half, uint32, uint64}")
        .Shape(ClipShape)
        .Gradient(ClipByValueGradient);

KernelSpec ClipKernels() {
  KernelSpec spec = KernelFor<ClipByValueKernel>("ClipByValue");
  for (int number = 1; number <= kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (math::FindBinary(math::BinaryOp::kMaximum, dtype) != nullptr) spec.Type("T", dtype);
  }
  return spec;
}
const KernelRegistration kClipByValueKernel = ClipKernels();

}  // namespace
}  // namespace millrace
