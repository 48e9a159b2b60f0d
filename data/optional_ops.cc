// SPDX-License-Identifier: Apache-2.0
#include "data/optional_ops.h"

#include <utility>

#include "data/element.h"
#include "data/optional_variant.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using data::Element;
using data::ElementOfOptional;
using data::OptionalTensor;

struct FromValueRule {
  StatusOr<PartialShape> operator()(RuleContext*) const { return PartialShape::Scalar(); }
};
Status RunFromValue(KernelContext* ctx, const FromValueRule&) {
  Element element;
  for (int i = 0; i < ctx->num_inputs(); ++i) element.push_back(ctx->TakeInput(i));
  ctx->set_output(0, OptionalTensor(std::move(element)));
  return absl::OkStatus();
}
const OpRegistration kFromValue =
    OpSpec("OptionalFromValue", "components: Toutput_types -> optional: variant",
           "Toutput_types: list(type) >= 1")
        .With(RuledKernelFor<FromValueRule>(RunFromValue, KernelCost::kCheap))
        .NotDifferentiable();

Status RunNone(KernelContext* ctx, const FromValueRule&) {
  ctx->set_output(0, OptionalTensor(std::nullopt));
  return absl::OkStatus();
}
const OpRegistration kNone = OpSpec("OptionalNone", "-> optional: variant")
                                 .With(RuledKernelFor<FromValueRule>(RunNone, KernelCost::kCheap))
                                 .NotDifferentiable();

struct HasValueRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "optional").status());
    return PartialShape::Scalar();
  }
};
Status RunHasValue(KernelContext* ctx, const HasValueRule&) {
  MR_ASSIGN_OR_RETURN(const Element* const element, ElementOfOptional(ctx->input(0)));
  ctx->set_output(0, Tensor::Scalar(element != nullptr));
  return absl::OkStatus();
}
const OpRegistration kHasValue =
    OpSpec("OptionalHasValue", "optional: variant -> has_value: bool")
        .With(RuledKernelFor<HasValueRule>(RunHasValue, KernelCost::kCheap))
        .NotDifferentiable();

Status GetValueShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "optional").status());
  MR_ASSIGN_OR_RETURN(const auto shapes, c->GetAttr<std::vector<PartialShape>>("output_shapes"));
  if (static_cast<int>(shapes.size()) != c->num_outputs()) {
    return InvalidArgument("output_shapes must have one shape for each of the ", c->num_outputs(),
                           " output_types, got ", shapes.size());
  }
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, shapes[static_cast<size_t>(i)]);
  return absl::OkStatus();
}
class GetValueKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    std::vector<DType> types;
    std::vector<PartialShape> shapes;
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "output_types", &types, "output_shapes", &shapes));
    if (types.size() != shapes.size()) {
      return InvalidArgument("output_shapes must have one shape for each of the ", types.size(),
                             " output_types, got ", shapes.size());
    }
    for (size_t i = 0; i < types.size(); ++i) spec_.push_back({types[i], shapes[i]});
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Element* const element, ElementOfOptional(ctx->input(0)));
    if (element == nullptr) return InvalidArgument("The given optional does not have a value.");
    MR_RETURN_IF_ERROR(data::CheckElement("the optional", spec_, *element));
    for (size_t i = 0; i < element->size(); ++i) {
      ctx->set_output(static_cast<int>(i), (*element)[i]);
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  data::ElementSpec spec_;
};
const OpRegistration kGetValue =
    OpSpec("OptionalGetValue", "optional: variant -> components: output_types",
           "output_types: list(type) >= 1; output_shapes: list(shape) >= 1")
        .Shape(GetValueShape)
        .NotDifferentiable()
        .With(KernelFor<GetValueKernel>());

}  // namespace
}  // namespace millrace
