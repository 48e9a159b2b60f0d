// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/lrn.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/loops/lrn.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

StatusOr<LRNAttrs> ReadAttrs(const tensorflow::NodeDef& node) {
  LRNAttrs attrs;
  MR_ASSIGN_OR_RETURN(attrs.depth_radius, GetAttr<int64_t>(node, "depth_radius"));
  MR_ASSIGN_OR_RETURN(attrs.bias, GetAttr<float>(node, "bias"));
  MR_ASSIGN_OR_RETURN(attrs.alpha, GetAttr<float>(node, "alpha"));
  MR_ASSIGN_OR_RETURN(attrs.beta, GetAttr<float>(node, "beta"));
  if (attrs.depth_radius < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("depth_radius must be >= 0, got ", attrs.depth_radius));
  }
  return attrs;
}

// One shape of rank 4 for all inputs.
StatusOr<PartialShape> CommonShape(absl::Span<const PartialShape> shapes) {
  PartialShape common = PartialShape::UnknownOfRank(4);
  for (const PartialShape& shape : shapes) {
    if (shape.has_rank() && shape.rank() != 4) {
      return absl::InvalidArgumentError(
          absl::StrCat("input must have rank 4, got shape ", shape.ToString()));
    }
    StatusOr<PartialShape> merged = common.MergeWith(shape);
    if (!merged.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("inputs must have the same shape, got ",
                                                     common.ToString(), " and ", shape.ToString()));
    }
    common = *std::move(merged);
  }
  return common;
}

Status LrnShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(ReadAttrs(c->node()).status());
  std::vector<PartialShape> shapes;
  for (int i = 0; i < c->num_inputs(); ++i) shapes.push_back(c->input(i));
  MR_ASSIGN_OR_RETURN(PartialShape common, CommonShape(shapes));
  c->set_output(0, std::move(common));
  return absl::OkStatus();
}

// One input forwards, three backwards.
class LrnKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(attrs_, ReadAttrs(c->node()));
    loops_ = math::FindLrn(c->output_type(0));
    if (loops_ == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("has no kernel for ", DTypeName(c->output_type(0))));
    }
    size_ = static_cast<int64_t>(DTypeSize(c->output_type(0)));
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    std::vector<PartialShape> shapes;
    for (int i = 0; i < ctx->num_inputs(); ++i) shapes.push_back(ctx->input(i).shape());
    MR_RETURN_IF_ERROR(CommonShape(shapes).status());
    MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0, ctx->input(0).shape()));
    if (output->num_elements() == 0) return absl::OkStatus();
    const math::LrnShape s{output->dim(3), attrs_.depth_radius, attrs_.bias, attrs_.alpha,
                           attrs_.beta};
    const auto at = [&](int i, int64_t row) {
      return static_cast<const char*>(ctx->input(i).raw_data()) + row * s.channels * size_;
    };
    char* to = static_cast<char*>(output->mutable_raw_data());
    const double element_ns = 20 + static_cast<double>(std::min(s.radius, s.channels));
    ctx->ParallelFor(output->num_elements() / s.channels,
                     element_ns * static_cast<double>(s.channels), [&](int64_t begin, int64_t end) {
                       char* out = to + begin * s.channels * size_;
                       if (ctx->num_inputs() == 1) {
                         loops_->forward(s, at(0, begin), out, end - begin);
                       } else {
                         loops_->gradient(s, at(0, begin), at(1, begin), at(2, begin), out,
                                          end - begin);
                       }
                     });
    return absl::OkStatus();
  }

 private:
  LRNAttrs attrs_;
  const math::LrnLoops* loops_ = nullptr;
  int64_t size_ = 0;
};

Status LrnGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const LRNAttrs attrs, ReadAttrs(c->node().def()));
  c->set_input_grad(0, LRNGrad(c->scope(), c->dense_grad(), c->input(0), c->output(0), attrs));
  return absl::OkStatus();
}

// Silence here would make second derivatives wrong.
Status RefuseSecondDerivative(GradientContext* c) {
  return absl::UnimplementedError(
      absl::StrCat("LRNGrad '", c->node().name(), "': the gradient of LRN has no gradient"));
}

OpSpec WithAttrs(OpSpec spec) {
  return spec.Attr("depth_radius: int = 5")
      .Attr("bias: float = 1.0")
      .Attr("alpha: float = 1.0")
      .Attr("beta: float = 0.5")
      .Attr("T: {half, bfloat16, float} = DT_FLOAT")
      .Shape(LrnShape);
}

const OpRegistration kLrn =
    WithAttrs(OpSpec("LRN").Input("input: T").Output("output: T")).Gradient(LrnGradient);
const KernelRegistration kLrnKernel = KernelFor<LrnKernel>("LRN");

const OpRegistration kLrnGrad = WithAttrs(OpSpec("LRNGrad")
                                              .Input("input_grads: T")
                                              .Input("input_image: T")
                                              .Input("output_image: T")
                                              .Output("output: T"))
                                    .Gradient(RefuseSecondDerivative);
const KernelRegistration kLrnGradKernel = KernelFor<LrnKernel>("LRNGrad");

}  // namespace
}  // namespace millrace
