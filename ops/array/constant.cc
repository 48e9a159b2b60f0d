// SPDX-License-Identifier: Apache-2.0
#include "ops/array/constant.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/partial_value.h"
#include "ops/loops/number.h"
#include "ops/math/reduction.h"
#include "ops/rules/elements.h"
#include "ops/rules/shape_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

Status CheckScalar(RuleContext* c, int i, const char* name) {
  if (c->input(i).IsCompatibleWith(PartialShape::Scalar())) return absl::OkStatus();
  return InvalidArgument(name, " must be a scalar, got shape ", c->input(i));
}

// Plain bytes, whose zero is 0 bytes, and strings.
bool HasZero(DType dtype) { return IsMemcopyable(dtype) || dtype == DT_STRING; }

// --- Const ---------------------------------------------------------------------------------------

struct ConstRule {
  Tensor value;

  Status Init(const NodeAttrs& attrs) {
    DType dtype = DT_INVALID;
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "dtype", &dtype, "value", &value));
    if (value.dtype() == dtype) return absl::OkStatus();
    return InvalidArgument("value must have dtype ", dtype, " of attr dtype, got ", value.dtype());
  }
  StatusOr<PartialShape> operator()(RuleContext*) const { return value.shape(); }
};

// In a step there is nothing left to check.
class ConstKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return rule_.Init(c->attrs()); }
  Status Compute(KernelContext* ctx) const override {
    ctx->set_output(0, rule_.value);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  ConstRule rule_;
};

const OpRegistration kConst = OpSpec("Const", "-> output: dtype", "value: tensor; dtype: type")
                                  .SameEachStep()
                                  .Rule<ConstRule>()
                                  .NotDifferentiable()
                                  .With(KernelFor<ConstKernel>());

// --- Fill ----------------------------------------------------------------------------------------

struct FillRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(CheckScalar(c, 1, "value"));
    return ShapeOfInput(c, 0, "dims");
  }
};

Status RunFill(KernelContext* ctx, const FillRule&) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  return FillElements(ctx->input(1), out);
}

// Each element is a copy of the scalar.
std::vector<Output> FillGradient(GradientContext* c) {
  return {Output(), ReduceSum(c->scope(), c->dense_grad())};
}

// A vector of equal elements.
std::optional<PartialValue> FillValue(PartialValueContext* c) {
  const std::optional<int64_t> size = c->input_single(0);
  const std::optional<PartialValue> value = c->input(1);
  if (!size || *size < 0 || *size > kMaxConstantElements || !value || !value->is_scalar) {
    return std::nullopt;
  }
  PartialValue filled;
  filled.elements.assign(static_cast<size_t>(*size), value->elements[0]);
  return filled;
}

const OpRegistration kFill = OpSpec("Fill", "dims: index_type, value: T -> output: T",
                                    "T: type; index_type: {int32, int64} = DT_INT32")
                                 .With(RuledKernelFor<FillRule>(RunFill).TypesWith("T", HasZero))
                                 .Gradient(FillGradient)
                                 .With(PartialValueRule(FillValue));

// --- ZerosLike, OnesLike -------------------------------------------------------------------------

Status RunZerosLike(KernelContext* ctx, const UnchangedShapeRule&) {
  if (ctx->input_dtype(0) == DT_STRING) return ctx->AllocateZeros(0).status();
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0));
  const absl::Span<char> bytes = out->mutable_bytes();
  std::fill(bytes.begin(), bytes.end(), '\0');
  return absl::OkStatus();
}

const OpRegistration kZerosLike =
    OpSpec("ZerosLike", "x: T -> y: T", "T: type")
        .With(RuledKernelFor<UnchangedShapeRule>(RunZerosLike).TypesWith("T", HasZero))
        .NotDifferentiable();

template <typename T>
Status RunOnesLike(KernelContext* ctx, const UnchangedShapeRule&) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0));
  return FillElements(Tensor::Scalar<T>(math::Store<T>(1)), out);
}

const OpRegistration kOnesLike =
    OpSpec("OnesLike", "x: T -> y: T",
           "T: {bfloat16, half, float, double, int8, uint8, int16, uint16, int32, int64, "
           "complex64, complex128, bool}")
        .With(RuledKernelsFor<UnchangedShapeRule, Bfloat16, Half, float, double, int8_t, uint8_t,
                              int16_t, uint16_t, int32_t, int64_t, std::complex<float>,
                              std::complex<double>, bool>(
            "T", []<typename T>() { return &RunOnesLike<T>; }))
        .NotDifferentiable();

// --- Range ---------------------------------------------------------------------------------------

// How many numbers Range makes; the only place that knows which (start, limit, delta) are legal.
template <typename T>
StatusOr<int64_t> RangeSize(T start, T limit, T delta) {
  if (delta == T{0}) return InvalidArgument("delta must not be 0, got 0");
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(start) || !std::isfinite(limit) || !std::isfinite(delta)) {
      return InvalidArgument("start, limit and delta must be finite, got ", start, ", ", limit,
                             ", ", delta);
    }
  }
  if (start == limit) return 0;
  const bool up = delta > T{0};
  if (up != (start < limit)) {
    return InvalidArgument("start ", start, " must be ", up ? "<=" : ">=", " limit ", limit,
                           " for delta ", delta);
  }
  const auto checked = [](auto count) -> StatusOr<int64_t> {
    if (count <= static_cast<decltype(count)>(Shape::kMaxElements)) {
      return static_cast<int64_t>(count);
    }
    return InvalidArgument("the number of elements must be <= ", Shape::kMaxElements, ", got ",
                           count);
  };
  if constexpr (std::is_integral_v<T>) {
    // Unsigned differences: exact over the whole range of T.
    const auto wide = [](T v) { return static_cast<uint64_t>(static_cast<int64_t>(v)); };
    const uint64_t distance = up ? wide(limit) - wide(start) : wide(start) - wide(limit);
    const uint64_t step = up ? wide(delta) : uint64_t{0} - wide(delta);
    return checked((distance - 1) / step + 1);
  } else {
    // In T, as TensorFlow does: (0, 0.3f, 0.1f) are 3 numbers, in double they would be 4.
    return checked(std::ceil(std::abs((limit - start) / delta)));
  }
}

using RangeTypes = math::TypeList<float, double, int32_t, int64_t>;

struct RangeRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    constexpr const char* kNames[] = {"start", "limit", "delta"};
    const Tensor* inputs[3];
    bool all_known = true;
    for (int i = 0; i < 3; ++i) {
      MR_RETURN_IF_ERROR(CheckScalar(c, i, kNames[i]));
      inputs[i] = c->input_tensor(i);
      all_known = all_known && inputs[i] != nullptr;
    }
    if (!all_known) return PartialShape({-1});
    const auto size_for = [&]<typename T>() {
      return +[](const Tensor* const* in) {
        return RangeSize<T>(in[0]->raw_scalar<T>(), in[1]->raw_scalar<T>(), in[2]->raw_scalar<T>());
      };
    };
    const auto size_of = math::LoopFor<RangeTypes>(inputs[0]->dtype(), size_for);
    if (size_of == nullptr) return PartialShape({-1});
    MR_ASSIGN_OR_RETURN(const int64_t size, size_of(inputs));
    return PartialShape({size});
  }
};

template <typename T>
Status RunRange(KernelContext* ctx, const RangeRule&) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  T value = ctx->input(0).raw_scalar<T>();
  for (T& element : out->mutable_raw<T>()) {
    element = value;
    // Added up, as TensorFlow does; the sum after the last element may wrap and is not used.
    value = math::WrapAdd(value, ctx->input(2).raw_scalar<T>());
  }
  return absl::OkStatus();
}

std::optional<PartialValue> RangeValue(PartialValueContext* c) {
  const std::optional<int64_t> start = c->input_scalar(0), limit = c->input_scalar(1),
                               delta = c->input_scalar(2);
  if (!start || !limit || !delta) return std::nullopt;
  const StatusOr<int64_t> size = RangeSize(*start, *limit, *delta);
  if (!size.ok() || *size > kMaxConstantElements) return std::nullopt;
  PartialValue range;
  for (int64_t i = 0; i < *size; ++i) range.elements.emplace_back(*start + i * *delta);
  return range;
}

const OpRegistration kRange =
    OpSpec("Range", "start: Tidx, limit: Tidx, delta: Tidx -> output: Tidx",
           "Tidx: {bfloat16, float, double, int32, int64} = DT_INT32")
        .With(RuledKernelsFor<RangeRule, float, double, int32_t, int64_t>(
            "Tidx", []<typename T>() { return &RunRange<T>; }))
        .NotDifferentiable()
        .With(PartialValueRule(RangeValue));

}  // namespace
}  // namespace millrace
