// SPDX-License-Identifier: Apache-2.0
#include "ops/array/constant.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <optional>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Const ---------------------------------------------------------------------------------------

// The only place that knows which (dtype, value) pairs are legal.
Status CheckConst(DType dtype, const Tensor& value) {
  if (value.dtype() != dtype) {
    return absl::InvalidArgumentError(absl::StrCat("value must have dtype ", DTypeName(dtype),
                                                   " of attr dtype, got ",
                                                   DTypeName(value.dtype())));
  }
  return absl::OkStatus();
}

Status ConstShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  MR_ASSIGN_OR_RETURN(const Tensor value, c->GetAttr<Tensor>("value"));
  MR_RETURN_IF_ERROR(CheckConst(dtype, value));
  c->set_output(0, value.shape());
  return absl::OkStatus();
}

class ConstKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
    MR_ASSIGN_OR_RETURN(value_, c->GetAttr<Tensor>("value"));
    return CheckConst(dtype, value_);
  }
  Status Compute(KernelContext* ctx) const override {
    ctx->set_output(0, value_);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  Tensor value_;
};

const OpRegistration kConst = OpSpec("Const")
                                  .Output("output: dtype")
                                  .Attr("value: tensor")
                                  .Attr("dtype: type")
                                  .Shape(ConstShape)
                                  .NotDifferentiable();
const KernelRegistration kConstKernel = KernelFor<ConstKernel>("Const");

// --- Fill ----------------------------------------------------------------------------------------

Status FillShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 1).status());
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 0).status());
  if (const Tensor* dims = c->input_tensor(0)) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < dims->num_elements(); ++i) {
      values.push_back(dims->dtype() == DT_INT32 ? dims->raw<int32_t>()[static_cast<size_t>(i)]
                                                 : dims->raw<int64_t>()[static_cast<size_t>(i)]);
    }
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(values));
    c->set_output(0, shape);
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->input_as_shape(0));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// Writes `count` copies of the `size` bytes at `value`.
void FillBytes(char* out, int64_t count, const char* value, size_t size) {
  if (count == 0) return;
  std::memcpy(out, value, size);
  const size_t total = static_cast<size_t>(count) * size;
  for (size_t done = size; done < total;) {
    const size_t step = std::min(done, total - done);
    std::memcpy(out + done, out, step);
    done += step;
  }
}

class FillKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, ctx->IntVectorInput(0, "dims"));
    const Tensor& value = ctx->input(1);
    if (!value.shape().is_scalar()) {
      return absl::InvalidArgumentError(
          absl::StrCat("value must be a scalar, got shape ", value.shape().ToString()));
    }
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (value.dtype() == DT_STRING) {
      for (std::string& s : out->mutable_raw<std::string>()) s = value.raw_scalar<std::string>();
      return absl::OkStatus();
    }
    if (!IsMemcopyable(value.dtype())) {
      return absl::UnimplementedError(
          absl::StrCat("value cannot be filled with dtype ", DTypeName(value.dtype())));
    }
    FillBytes(out->mutable_bytes().data(), shape.num_elements(), value.bytes().data(),
              DTypeSize(value.dtype()));
    return absl::OkStatus();
  }
};

Status FillGradient(GradientContext* c) {
  // Each element is a copy of the scalar.
  const Output grad = c->dense_grad(0);
  const Scope& scope = c->scope();
  const Output rank = NodeBuilder(scope, "Rank").Input(grad).Finish().output(0);
  const Output axes = Range(scope, Const(scope, int32_t{0}), rank, Const(scope, int32_t{1}));
  c->set_input_grad(1, NodeBuilder(scope, "Sum").Input(grad).Input(axes).Finish().output(0));
  return absl::OkStatus();
}

// A vector of equal elements.
std::optional<PartialValue> FillValue(PartialValueContext* c) {
  const std::optional<PartialValue> dims = c->input(0);
  const std::optional<PartialValue> value = c->input(1);
  if (!dims || dims->is_scalar || dims->elements.size() != 1 || !dims->elements[0] || !value ||
      !value->is_scalar || *dims->elements[0] < 0 || *dims->elements[0] > kMaxConstantElements) {
    return std::nullopt;
  }
  PartialValue filled;
  filled.elements.assign(static_cast<size_t>(*dims->elements[0]), value->elements[0]);
  return filled;
}

const OpRegistration kFill = OpSpec("Fill")
                                 .Input("dims: index_type")
                                 .Input("value: T")
                                 .Output("output: T")
                                 .Attr("T: type")
                                 .Attr("index_type: {int32, int64} = DT_INT32")
                                 .Shape(FillShape)
                                 .Gradient(FillGradient);
const PartialValueRule kFillRule("Fill", FillValue);
const KernelRegistration kFillKernel = KernelFor<FillKernel>("Fill");

// --- ZerosLike, OnesLike -------------------------------------------------------------------------

class ZerosLikeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& x = ctx->input(0);
    if (!IsMemcopyable(x.dtype())) {
      if (x.dtype() != DT_STRING) {
        return absl::UnimplementedError(
            absl::StrCat("x has no zero of dtype ", DTypeName(x.dtype())));
      }
      return ctx->AllocateOutput(0, x.shape()).status();  // strings begin empty
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0, x.shape()));
    absl::Span<char> bytes = out->mutable_bytes();
    if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
    return absl::OkStatus();
  }
};

const OpRegistration kZerosLike = OpSpec("ZerosLike")
                                      .Input("x: T")
                                      .Output("y: T")
                                      .Attr("T: type")
                                      .Shape(UnchangedShape)
                                      .NotDifferentiable();
const KernelRegistration kZerosLikeKernel = KernelFor<ZerosLikeKernel>("ZerosLike");

// The bytes of 1 in each dtype that OnesLike allows.
size_t BytesOfOne(DType dtype, char* one) {
  const auto put = [one](auto value) {
    std::memcpy(one, &value, sizeof(value));
    return sizeof(value);
  };
  switch (dtype) {
    case DT_FLOAT:
      return put(1.0f);
    case DT_DOUBLE:
      return put(1.0);
    case DT_INT8:
      return put(int8_t{1});
    case DT_UINT8:
      return put(uint8_t{1});
    case DT_INT16:
      return put(int16_t{1});
    case DT_UINT16:
      return put(uint16_t{1});
    case DT_INT32:
      return put(int32_t{1});
    case DT_INT64:
      return put(int64_t{1});
    case DT_BOOL:
      return put(true);
    case DT_HALF:
      return put(ToHalf(1.0f).bits);
    case DT_BFLOAT16:
      return put(ToBfloat16(1.0f).bits);
    case DT_COMPLEX64:
      return put(std::complex<float>(1));
    case DT_COMPLEX128:
      return put(std::complex<double>(1));
    default:
      return 0;
  }
}

class OnesLikeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& x = ctx->input(0);
    char one[16];
    const size_t size = BytesOfOne(x.dtype(), one);
    if (size == 0) {
      return absl::UnimplementedError(absl::StrCat("x has no one of dtype ", DTypeName(x.dtype())));
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0, x.shape()));
    FillBytes(out->mutable_bytes().data(), out->num_elements(), one, size);
    return absl::OkStatus();
  }
};

const OpRegistration kOnesLike =
    OpSpec("OnesLike")
        .Input("x: T")
        .Output("y: T")
        .Attr(
            "T: {bfloat16, half, float, double, int8, uint8, int16, uint16, int32, int64, "
            "complex64, complex128, bool}")
        .Shape(UnchangedShape)
        .NotDifferentiable();
const KernelRegistration kOnesLikeKernel = KernelFor<OnesLikeKernel>("OnesLike");

// --- Range ---------------------------------------------------------------------------------------

// How many numbers Range makes; the only place that knows which (start, limit, delta) are legal.
template <typename T>
StatusOr<int64_t> RangeSize(T start, T limit, T delta) {
  if (delta == T{0}) return absl::InvalidArgumentError("delta must not be 0, got 0");
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(start) || !std::isfinite(limit) || !std::isfinite(delta)) {
      return absl::InvalidArgumentError(absl::StrCat("start, limit and delta must be finite, got ",
                                                     start, ", ", limit, ", ", delta));
    }
  }
  if (delta > T{0} ? start >= limit : start <= limit) {
    if (start == limit) return 0;
    return absl::InvalidArgumentError(absl::StrCat("start ", start, " must be ",
                                                   delta > T{0} ? "<=" : ">=", " limit ", limit,
                                                   " for delta ", delta));
  }
  double size;
  if constexpr (std::is_integral_v<T>) {
    // Unsigned differences: exact over the whole range of T.
    const auto wide = [](T v) { return static_cast<uint64_t>(static_cast<int64_t>(v)); };
    const uint64_t distance = delta > 0 ? wide(limit) - wide(start) : wide(start) - wide(limit);
    const uint64_t step = delta > 0 ? wide(delta) : uint64_t{0} - wide(delta);
    const uint64_t count = distance / step + (distance % step != 0 ? 1 : 0);
    if (count > static_cast<uint64_t>(Shape::kMaxElements)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the number of elements must be <= ", Shape::kMaxElements, ", got ", count));
    }
    return static_cast<int64_t>(count);
  } else {
    size = std::ceil(std::abs((static_cast<double>(limit) - static_cast<double>(start)) /
                              static_cast<double>(delta)));
    if (size > static_cast<double>(Shape::kMaxElements)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the number of elements must be <= ", Shape::kMaxElements, ", got ", size));
    }
    return static_cast<int64_t>(size);
  }
}

template <typename T>
StatusOr<int64_t> RangeSizeOf(const Tensor& start, const Tensor& limit, const Tensor& delta) {
  return RangeSize<T>(start.raw_scalar<T>(), limit.raw_scalar<T>(), delta.raw_scalar<T>());
}

Status RangeShape(InferenceContext* c) {
  for (int i = 0; i < 3; ++i) MR_RETURN_IF_ERROR(c->InputWithRank(i, 0).status());
  const Tensor* start = c->input_tensor(0);
  const Tensor* limit = c->input_tensor(1);
  const Tensor* delta = c->input_tensor(2);
  if (start == nullptr || limit == nullptr || delta == nullptr) {
    c->set_output(0, PartialShape::UnknownOfRank(1));
    return absl::OkStatus();
  }
  StatusOr<int64_t> size = int64_t{-1};
  switch (start->dtype()) {
    case DT_FLOAT:
      size = RangeSizeOf<float>(*start, *limit, *delta);
      break;
    case DT_DOUBLE:
      size = RangeSizeOf<double>(*start, *limit, *delta);
      break;
    case DT_INT32:
      size = RangeSizeOf<int32_t>(*start, *limit, *delta);
      break;
    case DT_INT64:
      size = RangeSizeOf<int64_t>(*start, *limit, *delta);
      break;
    default:
      break;
  }
  MR_RETURN_IF_ERROR(size.status());
  const int64_t dims[] = {*size};
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename T>
class RangeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const T start, ctx->ScalarInput<T>(0, "start"));
    MR_ASSIGN_OR_RETURN(const T limit, ctx->ScalarInput<T>(1, "limit"));
    MR_ASSIGN_OR_RETURN(const T delta, ctx->ScalarInput<T>(2, "delta"));
    MR_ASSIGN_OR_RETURN(const int64_t size, RangeSize<T>(start, limit, delta));
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({size}));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    absl::Span<T> values = out->mutable_raw<T>();
    T value = start;
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = value;
      // Added up, as TensorFlow does; the sum after the last element may wrap and is not used.
      if constexpr (std::is_integral_v<T>) {
        using U = std::make_unsigned_t<T>;
        value = static_cast<T>(static_cast<U>(value) + static_cast<U>(delta));
      } else {
        value += delta;
      }
    }
    return absl::OkStatus();
  }
};

std::optional<PartialValue> RangeValue(PartialValueContext* c) {
  const std::optional<int64_t> start = c->input_scalar(0), limit = c->input_scalar(1),
                               delta = c->input_scalar(2);
  if (!start || !limit || !delta || *delta == 0) return std::nullopt;
  if (*delta > 0 ? *start > *limit : *start < *limit) return std::nullopt;
  PartialValue range;
  for (int64_t i = *start; *delta > 0 ? i < *limit : i > *limit;) {
    if (range.elements.size() == static_cast<size_t>(kMaxConstantElements)) return std::nullopt;
    range.elements.emplace_back(i);
    if (__builtin_add_overflow(i, *delta, &i)) return std::nullopt;
  }
  return range;
}

const OpRegistration kRange = OpSpec("Range")
                                  .Input("start: Tidx")
                                  .Input("limit: Tidx")
                                  .Input("delta: Tidx")
                                  .Output("output: Tidx")
                                  .Attr("Tidx: {bfloat16, float, double, int32, int64} = DT_INT32")
                                  .Shape(RangeShape)
                                  .NotDifferentiable();
const PartialValueRule kRangeRule("Range", RangeValue);
const KernelRegistration kRangeFloat = KernelFor<RangeKernel<float>>("Range").Type<float>("Tidx");
const KernelRegistration kRangeDouble =
    KernelFor<RangeKernel<double>>("Range").Type<double>("Tidx");
const KernelRegistration kRangeInt32 =
    KernelFor<RangeKernel<int32_t>>("Range").Type<int32_t>("Tidx");
const KernelRegistration kRangeInt64 =
    KernelFor<RangeKernel<int64_t>>("Range").Type<int64_t>("Tidx");

}  // namespace
}  // namespace millrace
