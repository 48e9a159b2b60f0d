// SPDX-License-Identifier: Apache-2.0
#include "ops/math/add_n.h"

#include <vector>

#include "graph/gradient.h"
#include "graph/shape_inference.h"
#include "ops/kernels/element_block.h"
#include "ops/loops/binary.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// One pass over the result in blocks that stay in the cache, adding all inputs to each.
class AddNKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    const DType dtype = WithoutRef(c->input_type(0));
    add_ = math::FindBinary(math::BinaryOp::kAdd, dtype);
    if (add_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype)));
    }
    size_ = static_cast<int64_t>(DTypeSize(dtype));
    if (HasAttr(c->node(), "shape")) {
      MR_ASSIGN_OR_RETURN(declared_, c->GetAttr<PartialShape>("shape"));
    }
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const int n = ctx->num_inputs();
    const Shape shape = ctx->input(0).shape();
    if (!declared_.IsCompatibleWith(shape)) {
      return absl::InvalidArgumentError(absl::StrCat("inputs must have the shape of the attr, ",
                                                     declared_.ToString(), ", got ",
                                                     shape.ToString()));
    }
    std::vector<const char*> inputs;
    for (int i = 0; i < n; ++i) {
      const Tensor& x = ctx->input(i);
      if (x.shape() != shape) {
        return absl::InvalidArgumentError(
            absl::StrCat("Inputs to operation ", ctx->node_name(),
                         " must have the same size and shape: input 0 has ", shape.ToString(),
                         ", input ", i, " has ", x.shape().ToString()));
      }
      inputs.push_back(static_cast<const char*>(x.raw_data()));
    }
    if (n == 1) {
      ctx->set_output(0, ctx->TakeInput(0));
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * sum, ctx->ForwardInputOrAllocateOutput({0, 1}, 0, shape));
    char* out = static_cast<char*>(sum->mutable_raw_data());
    ctx->ParallelBlocks(shape.num_elements(), kElementBlock, 0.1 * n * static_cast<double>(size_),
                        [&](int64_t begin, int64_t end) {
                          const int64_t at = begin * size_, count = end - begin;
                          // The first two are read before the result, which may be one of them, is
                          // written.
                          add_(inputs[0] + at, false, inputs[1] + at, false, out + at, count);
                          for (size_t i = 2; i < inputs.size(); ++i) {
                            add_(out + at, false, inputs[i] + at, false, out + at, count);
                          }
                        });
    return absl::OkStatus();
  }

 private:
  math::BinaryFn add_ = nullptr;
  int64_t size_ = 0;
  PartialShape declared_;
};

Status AddNShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, MergeAll(c, 0, c->num_inputs()));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

Status AccumulateShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape declared, c->GetAttr<PartialShape>("shape"));
  if (!declared.IsFullyDefined()) {
    return absl::InvalidArgumentError(
        absl::StrCat("attr shape must be fully known, got ", declared.ToString()));
  }
  MR_ASSIGN_OR_RETURN(const PartialShape merged, MergeAll(c, 0, c->num_inputs()));
  if (!merged.IsCompatibleWith(declared)) {
    return absl::InvalidArgumentError(absl::StrCat("inputs must have the shape of the attr, ",
                                                   declared.ToString(), ", got ",
                                                   merged.ToString()));
  }
  c->set_output(0, declared);
  return absl::OkStatus();
}

// Each input gets the gradient of the sum.
Status AddNGradient(GradientContext* c) {
  const Output grad = c->dense_grad();
  for (int i = 0; i < c->num_inputs(); ++i) c->set_input_grad(i, grad);
  return absl::OkStatus();
}

KernelSpec ForAddableTypes(KernelSpec spec) {
  for (int number = 1; number <= kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (dtype == DT_STRING) continue;
    if (math::FindBinary(math::BinaryOp::kAdd, dtype) != nullptr) spec.Type("T", dtype);
  }
  return spec;
}

const OpRegistration kAddN =
    OpSpec("AddN")
        .Input("inputs: N * T")
        .Output("sum: T")
        .Attr("N: int >= 1")
        .Attr(
            "T: {float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, "
            "qint32, bfloat16, uint16, complex128, half, uint32, uint64, variant}")
        .Aggregate()
        .Commutative()
        .Shape(AddNShape)
        .Gradient(AddNGradient);
const KernelRegistration kAddNKernel = ForAddableTypes(KernelFor<AddNKernel>("AddN"));

const OpRegistration kAccumulateNV2 =
    OpSpec("AccumulateNV2")
        .Input("inputs: N * T")
        .Output("sum: T")
        .Attr("N: int >= 1")
        .Attr(
            "T: {float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, "
            "qint32, bfloat16, uint16, complex128, half, uint32, uint64}")
        .Attr("shape: shape")
        .Aggregate()
        .Commutative()
        .Shape(AccumulateShape)
        .Gradient(AddNGradient);
const KernelRegistration kAccumulateNV2Kernel =
    ForAddableTypes(KernelFor<AddNKernel>("AccumulateNV2"));

}  // namespace
}  // namespace millrace
