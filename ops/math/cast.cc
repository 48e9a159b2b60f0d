// SPDX-License-Identifier: Apache-2.0
#include "ops/math/cast.h"

#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "ops/loops/cast.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Cast ----------------------------------------------------------------------------------------

class CastKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    const DType from = WithoutRef(c->input_type(0)), to = c->output_type(0);
    MR_ASSIGN_OR_RETURN(const bool truncate, c->GetAttr<bool>("Truncate"));
    if (from != to) fn_ = math::FindCast(from, to, truncate);
    if (from == to || fn_ != nullptr) return absl::OkStatus();
    return Unimplemented("Cast ", from, " to ", to, " is not supported");
  }
  Status Compute(KernelContext* ctx) const override {
    const Tensor& x = ctx->input(0);
    if (fn_ == nullptr) {  // the same type
      ctx->set_output(0, x);
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * y, ctx->AllocateOutput(0, x.shape()));
    const char* from = static_cast<const char*>(x.raw_data());
    char* to = static_cast<char*>(y->mutable_raw_data());
    const int64_t from_size = static_cast<int64_t>(DTypeSize(x.dtype()));
    const int64_t to_size = static_cast<int64_t>(DTypeSize(y->dtype()));
    // Memory-bound for most pairs; up to a few nanoseconds where the library converts one by one.
    ctx->ParallelFor(x.num_elements(), 1.0, [&](int64_t begin, int64_t end) {
      fn_(from + begin * from_size, to + begin * to_size, end - begin);
    });
    return absl::OkStatus();
  }

 private:
  math::CastFn fn_ = nullptr;
};

// The gradient is cast back; none flows through integers.
Output CastGradient(GradientContext* c) {
  const DType from = WithoutRef(c->input(0).dtype()), to = WithoutRef(c->output(0).dtype());
  if (!IsTrainable(from) || !IsTrainable(to)) return Output();
  return Cast(c->scope(), c->dense_grad(), from);
}

// Of integers that fit the result's type.
std::optional<PartialValue> CastValue(PartialValueContext* c) {
  std::optional<PartialValue> value = c->input(0);
  if (!value) return std::nullopt;
  for (std::optional<int64_t>& element : value->elements) element = IfItFits(element, c->dtype());
  return value;
}

const OpRegistration kCast =
    OpSpec("Cast", "x: SrcT -> y: DstT", "SrcT: type; DstT: type; Truncate: bool = false")
        .Rule<UnchangedShapeRule>()
        .Gradient(CastGradient)
        .With(KernelFor<CastKernel>())
        .With(PartialValueRule(CastValue));

// --- Bitcast -------------------------------------------------------------------------------------

// The shape of the same bytes as elements of `to`.
struct BitcastRule {
  DType from = DT_INVALID, to = DT_INVALID;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "T", &from, "type", &to); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape& shape = c->input(0);
    if (!shape.has_rank()) return shape;
    const int64_t from_size = static_cast<int64_t>(DTypeSize(from));
    const int64_t to_size = static_cast<int64_t>(DTypeSize(to));
    std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
    if (from_size > to_size) {
      dims.push_back(from_size / to_size);
    } else if (from_size < to_size) {
      const int64_t ratio = to_size / from_size;
      if (dims.empty() || (dims.back() != ratio && dims.back() != -1)) {
        return InvalidArgument("Cannot bitcast from ", from, " to ", to,
                               ": the last dimension must be ", ratio, ", got shape ", shape);
      }
      dims.pop_back();
    }
    return PartialShape::Make(dims);
  }
};

class BitcastKernel : public RuledKernel<BitcastRule> {
 public:
  bool may_be_expensive() const override { return false; }

 protected:
  Status Run(KernelContext* ctx) const override {
    Tensor in = ctx->input(0);
    if (in.num_elements() == 0) return ctx->AllocateOutput(0).status();
    // Floats of another task's memory are read where they lie: it might change them. Indices and
    // whatever else is checked must stay as they are.
    if (in.buffer()->is_read_only() && !IsFloating(rule().to)) {
      MR_ASSIGN_OR_RETURN(in, in.Clone());
    }
    const size_t offset = static_cast<size_t>(static_cast<const char*>(in.raw_data()) -
                                              static_cast<const char*>(in.buffer()->data()));
    MR_ASSIGN_OR_RETURN(Tensor out,
                        Tensor::FromBuffer(rule().to, ctx->output_shape(0), in.buffer(), offset));
    ctx->set_output(0, std::move(out));
    return absl::OkStatus();
  }
};

constexpr char kBitcastTypes[] =
    "{bfloat16, half, float, double, int64, int32, uint8, uint16, uint32, uint64, int8, int16, "
    "complex64, complex128, qint8, quint8, qint16, quint16, qint32}";

const OpRegistration kBitcast =
    OpSpec("Bitcast", "input: T -> output: type",
           absl::StrCat("T: ", kBitcastTypes, "; type: ", kBitcastTypes))
        .With(KernelFor<BitcastKernel>())
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
