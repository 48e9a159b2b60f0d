// SPDX-License-Identifier: Apache-2.0
#include "ops/math/cast.h"

#include <optional>

#include "graph/gradient.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "ops/loops/cast.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Cast ----------------------------------------------------------------------------------------

class CastKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    const DType from = WithoutRef(c->input_type(0));
    const DType to = c->output_type(0);
    MR_ASSIGN_OR_RETURN(const bool truncate, c->GetAttr<bool>("Truncate"));
    same_ = from == to;
    if (same_) return absl::OkStatus();
    fn_ = math::FindCast(from, to, truncate);
    if (fn_ == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("Cast ", DTypeName(from), " to ", DTypeName(to), " is not supported"));
    }
    from_size_ = static_cast<int64_t>(DTypeSize(from));
    to_size_ = static_cast<int64_t>(DTypeSize(to));
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    if (same_) {
      ctx->set_output(0, ctx->TakeInput(0));
      return absl::OkStatus();
    }
    const Tensor& x = ctx->input(0);
    const char* from = static_cast<const char*>(x.raw_data());
    MR_ASSIGN_OR_RETURN(Tensor * y, ctx->AllocateOutput(0, x.shape()));
    char* to = static_cast<char*>(y->mutable_raw_data());
    // Memory-bound for most pairs; up to a few nanoseconds where the library converts one by one.
    ctx->ParallelFor(x.num_elements(), 1.0, [&](int64_t begin, int64_t end) {
      fn_(from + begin * from_size_, to + begin * to_size_, end - begin);
    });
    return absl::OkStatus();
  }

 private:
  bool same_ = false;
  math::CastFn fn_ = nullptr;
  int64_t from_size_ = 0;
  int64_t to_size_ = 0;
};

// The gradient is cast back; none flows through integers.
Status CastGradient(GradientContext* c) {
  const DType from = WithoutRef(c->input(0).dtype());
  const DType to = WithoutRef(c->output(0).dtype());
  if (IsTrainable(from) && IsTrainable(to)) {
    c->set_input_grad(0, Cast(c->scope(), c->dense_grad(), from));
  }
  return absl::OkStatus();
}

// Of integers that fit the result's type.
std::optional<PartialValue> CastValue(PartialValueContext* c) {
  std::optional<PartialValue> value = c->input(0);
  if (!value) return std::nullopt;
  for (std::optional<int64_t>& element : value->elements) element = IfItFits(element, c->dtype());
  return value;
}

const OpRegistration kCast = OpSpec("Cast")
                                 .Input("x: SrcT")
                                 .Output("y: DstT")
                                 .Attr("SrcT: type")
                                 .Attr("DstT: type")
                                 .Attr("Truncate: bool = false")
                                 .Shape(UnchangedShape)
                                 .Gradient(CastGradient);
const PartialValueRule kCastRule("Cast", CastValue);
const KernelRegistration kCastKernel = KernelFor<CastKernel>("Cast");

// --- Bitcast -------------------------------------------------------------------------------------

// The shape of the same bytes as elements of `to`. The only place that knows which are legal.
StatusOr<PartialShape> BitcastDims(const PartialShape& shape, DType from, DType to) {
  if (!shape.has_rank()) return PartialShape();
  const int64_t from_size = static_cast<int64_t>(DTypeSize(from));
  const int64_t to_size = static_cast<int64_t>(DTypeSize(to));
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  if (from_size > to_size) {
    dims.push_back(from_size / to_size);
  } else if (from_size < to_size) {
    const int64_t ratio = to_size / from_size;
    if (dims.empty() || (dims.back() != ratio && dims.back() != -1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("Cannot bitcast from ", DTypeName(from), " to ", DTypeName(to),
                       ": the last dimension must be ", ratio, ", got shape ", shape.ToString()));
    }
    dims.pop_back();
  }
  return PartialShape::Make(dims);
}

class BitcastKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    to_ = c->output_type(0);
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const Tensor& in = ctx->input(0);
    MR_ASSIGN_OR_RETURN(const PartialShape dims, BitcastDims(in.shape(), in.dtype(), to_));
    MR_ASSIGN_OR_RETURN(const Shape shape, dims.ToShape());
    if (in.num_elements() == 0) {
      return ctx->AllocateOutput(0, shape).status();
    }
    const size_t offset = static_cast<size_t>(static_cast<const char*>(in.raw_data()) -
                                              static_cast<const char*>(in.buffer()->data()));
    MR_ASSIGN_OR_RETURN(Tensor out, Tensor::FromBuffer(to_, shape, in.buffer(), offset));
    ctx->set_output(0, std::move(out));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  DType to_ = DT_INVALID;
};

Status BitcastShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const DType from, c->GetAttr<DType>("T"));
  MR_ASSIGN_OR_RETURN(const DType to, c->GetAttr<DType>("type"));
  MR_ASSIGN_OR_RETURN(PartialShape shape, BitcastDims(c->input(0), from, to));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

constexpr char kBitcastTypes[] =
    "{bfloat16, half, float, double, int64, int32, uint8, uint16, uint32, uint64, int8, int16, "
    "complex64, complex128, qint8, quint8, qint16, quint16, qint32}";

const OpRegistration kBitcast = OpSpec("Bitcast")
                                    .Input("input: T")
                                    .Output("output: type")
                                    .Attr(absl::StrCat("T: ", kBitcastTypes))
                                    .Attr(absl::StrCat("type: ", kBitcastTypes))
                                    .Shape(BitcastShape)
                                    .NotDifferentiable();
const KernelRegistration kBitcastKernel = KernelFor<BitcastKernel>("Bitcast");

}  // namespace
}  // namespace millrace
