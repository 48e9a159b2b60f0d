// SPDX-License-Identifier: Apache-2.0
#include "data/dataset_op.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/dataset_variant.h"
#include "graph/shape_inference.h"
#include "proto/op_def.pb.h"
#include "runtime/function_runner.h"

namespace millrace::data {
namespace {

// What the node says of the elements; empty where it says nothing.
StatusOr<ElementSpec> DeclaredSpec(const NodeAttrs& attrs) {
  ElementSpec spec;
  const auto& map = attrs.node().attr();
  const bool of_tensors = map.contains("Toutput_types");
  if (!map.contains("output_shapes") || !(of_tensors || map.contains("output_types"))) return spec;
  std::vector<DType> types;
  std::vector<PartialShape> shapes;
  MR_RETURN_IF_ERROR(ReadAttrs(attrs, of_tensors ? "Toutput_types" : "output_types", &types,
                               "output_shapes", &shapes));
  if (types.size() != shapes.size()) {
    return InvalidArgument("output_shapes must have one shape for each of the ", types.size(),
                           " types, got ", shapes.size());
  }
  for (size_t i = 0; i < types.size(); ++i) spec.push_back({types[i], shapes[i]});
  return spec;
}

class DatasetKernel : public Kernel {
 public:
  explicit DatasetKernel(MakeDatasetFn make) : make_(make) {}

  Status Init(KernelConstruction* c) override { return info_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Dataset dataset, make_(DatasetArgs(ctx, &info_)));
    MR_RETURN_IF_ERROR(dataset.status());
    MR_RETURN_IF_ERROR(
        MergeSpecs("output_types and output_shapes", dataset.spec(), info_.declared()).status());
    ctx->set_output(0, DatasetValue(dataset));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  const MakeDatasetFn make_;
  DatasetNodeInfo info_;
};

ShapeFn ShapeOf(DatasetArgShapes shapes) {
  return [shapes](InferenceContext* c) -> Status {
    MR_RETURN_IF_ERROR(DeclaredSpec(c->attrs()).status());
    for (int i = 0; i < c->num_inputs(); ++i) {
      if (shapes == DatasetArgShapes::kElementTensors) continue;
      if (shapes == DatasetArgShapes::kFirstIsList && i == 0) {
        if (!c->input(0).has_rank() || c->input(0).rank() <= 1) continue;
        return InvalidArgument("input 0 must be a scalar or a vector, got shape ", c->input(0));
      }
      MR_RETURN_IF_ERROR(c->InputWithRank(i, 0).status());
    }
    c->set_output(0, PartialShape::Scalar());
    return absl::OkStatus();
  };
}

OpSpec SpecOf(const char* name, const char* arguments, const char* attrs, MakeDatasetFn make,
              DatasetArgShapes shapes) {
  return OpSpec(name, absl::StrCat(arguments, " -> handle: variant"), attrs)
      .Shape(ShapeOf(shapes))
      .NotDifferentiable()
      .With(KernelFor<DatasetKernel>(make));
}

}  // namespace

DatasetOp::DatasetOp(const char* name, const char* arguments, const char* attrs, MakeDatasetFn make,
                     DatasetArgShapes shapes) {
  OpRegistration{SpecOf(name, arguments, attrs, make, shapes)};
}

DatasetSourceOp::DatasetSourceOp(const char* name, const char* arguments, const char* attrs,
                                 MakeDatasetFn make, DatasetArgShapes shapes) {
  OpRegistration{SpecOf(name, arguments, attrs, make, shapes).Stateful()};
}

Status DatasetNodeInfo::Init(KernelConstruction* c) {
  node_ = c->node();
  MR_ASSIGN_OR_RETURN(declared_, DeclaredSpec(c->attrs()));
  for (const auto& arg : c->op().input_arg()) {
    MR_ASSIGN_OR_RETURN(const ArgRange range, c->InputRange(arg.name()));
    names_.insert(names_.end(), static_cast<size_t>(range.size()), arg.name());
    ranges_.emplace_back(arg.name(), range);
  }
  for (const auto& attr : c->op().attr()) {
    if (attr.type() != "func") continue;
    MR_ASSIGN_OR_RETURN(CalledFunction* const function, c->Function(attr.name(), attr.name()));
    functions_.emplace_back(attr.name(), function);
  }
  return absl::OkStatus();
}

StatusOr<ArgRange> DatasetNodeInfo::range(absl::string_view argument) const {
  for (const auto& [name, range] : ranges_) {
    if (name == argument) return range;
  }
  return Internal("the op has no argument '", argument, "'");
}

StatusOr<CalledFunction*> DatasetNodeInfo::function(absl::string_view attr) const {
  for (const auto& [name, function] : functions_) {
    if (name == attr) return function;
  }
  return Internal("the op has no function '", attr, "'");
}

StatusOr<Element> DatasetArgs::Tensors(absl::string_view argument) const {
  MR_ASSIGN_OR_RETURN(const ArgRange range, info_->range(argument));
  return tensors(range.begin, range.end);
}

StatusOr<GraphFunction> DatasetArgs::Function(absl::string_view attr,
                                              absl::string_view captured) const {
  MR_ASSIGN_OR_RETURN(CalledFunction* const function, info_->function(attr));
  MR_ASSIGN_OR_RETURN(Element tensors, Tensors(captured));
  return GraphFunction::Make(attr, function, std::move(tensors), ctx_->step());
}

Element DatasetArgs::tensors(int begin, int end) const {
  Element tensors;
  for (int i = begin; i < end; ++i) tensors.push_back(tensor(i));
  return tensors;
}

StatusOr<Dataset> DatasetArgs::dataset(int i) const {
  MR_ASSIGN_OR_RETURN(DatasetWithOptions found, DatasetOf(tensor(i), name(i)));
  return std::move(found.dataset);
}

StatusOr<std::vector<std::string>> DatasetArgs::Texts(int i) const {
  const Tensor& texts = tensor(i);
  if (texts.rank() > 1) {
    return InvalidArgument(name(i), " must be a scalar or a vector, got shape ", texts.shape());
  }
  const absl::Span<const std::string> values = texts.raw<std::string>();
  return std::vector<std::string>(values.begin(), values.end());
}

}  // namespace millrace::data
