// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/string_join.h"

#include <utility>

#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- StringJoin ----------------------------------------------------------------------------------

// The only place that knows which shapes go together. An input of unknown rank may be a scalar.
StatusOr<PartialShape> JoinedShape(absl::Span<const PartialShape> inputs) {
  PartialShape joined = PartialShape::Scalar();
  bool may_be_other = false;
  bool has_list = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].has_rank()) {
      may_be_other = true;
      continue;
    }
    if (inputs[i].rank() == 0) continue;
    if (!has_list) {
      joined = inputs[i];
      has_list = true;
      continue;
    }
    StatusOr<PartialShape> merged = joined.MergeWith(inputs[i]);
    if (!merged.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("inputs[", i, "] must be a scalar or have shape ", joined.ToString(),
                       ", got shape ", inputs[i].ToString()));
    }
    joined = *std::move(merged);
  }
  // The input of unknown rank may refine what the others leave open, but not contradict it.
  if (may_be_other && !has_list) return PartialShape::Unknown();
  return joined;
}

Status StringJoinShape(InferenceContext* c) {
  std::vector<PartialShape> inputs;
  for (int i = 0; i < c->num_inputs(); ++i) inputs.push_back(c->input(i));
  MR_ASSIGN_OR_RETURN(PartialShape joined, JoinedShape(inputs));
  c->set_output(0, std::move(joined));
  return absl::OkStatus();
}

class StringJoinKernel : public Kernel {
 public:
  Status Init(KernelConstruction* construction) override {
    MR_ASSIGN_OR_RETURN(separator_, construction->GetAttr<std::string>("separator"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    std::vector<PartialShape> shapes;
    for (int i = 0; i < ctx->num_inputs(); ++i) shapes.push_back(ctx->input(i).shape());
    MR_ASSIGN_OR_RETURN(const PartialShape joined, JoinedShape(shapes));
    MR_ASSIGN_OR_RETURN(const Shape shape, joined.ToShape());
    MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0, shape));
    absl::Span<std::string> out = output->mutable_raw<std::string>();
    for (size_t j = 0; j < out.size(); ++j) {
      std::string text;
      for (int i = 0; i < ctx->num_inputs(); ++i) {
        if (i > 0) text += separator_;
        const Tensor& input = ctx->input(i);
        text += input.raw<std::string>()[input.shape().is_scalar() ? 0 : j];
      }
      out[j] = std::move(text);
    }
    return absl::OkStatus();
  }

 private:
  std::string separator_;
};

const OpRegistration kStringJoin = OpSpec("StringJoin")
                                       .Input("inputs: N * string")
                                       .Output("output: string")
                                       .Attr("N: int >= 1")
                                       .Attr("separator: string = ''")
                                       .Shape(StringJoinShape)
                                       .NotDifferentiable();
const KernelRegistration kStringJoinKernel = KernelFor<StringJoinKernel>("StringJoin");

}  // namespace
}  // namespace millrace
