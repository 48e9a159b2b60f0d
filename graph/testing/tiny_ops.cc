// SPDX-License-Identifier: Apache-2.0
#include "graph/testing/tiny_ops.h"

#include "core/status.h"
#include "core/tensor.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"

namespace millrace::testing {
namespace {

Status ConstShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const Tensor value, c->GetAttr<Tensor>("value"));
  c->set_output(0, value.shape());
  return absl::OkStatus();
}

Status ShapeOfAttr(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

Status HandleShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  c->set_output(0, Shape());
  c->set_output_handle(0, HandleData{dtype, std::move(shape)});
  return absl::OkStatus();
}

Status ReadShape(InferenceContext* c) {
  c->set_output(0, c->input_handle(0) ? c->input_handle(0)->shape : PartialShape());
  return absl::OkStatus();
}

// Output 0 is shaped as input 1, output 1 a scalar.
Status GatherShape(InferenceContext* c) {
  c->set_output(0, c->input(1));
  return absl::OkStatus();
}

Status SwitchShape(InferenceContext* c) {
  for (int i = 0; i < 2; ++i) {
    c->set_output(i, c->input(0));
    if (c->input_handle(0)) c->set_output_handle(i, *c->input_handle(0));
  }
  return absl::OkStatus();
}

Status MergeShape(InferenceContext* c) {
  c->set_output(0, c->input(0));
  c->set_output(1, Shape());
  return absl::OkStatus();
}

Status PassOn(GradientContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) {
    if (const auto* slices = std::get_if<IndexedSlices>(&c->grad())) {
      c->set_input_grad(i, *slices);
    } else {
      c->set_input_grad(i, c->dense_grad());
    }
  }
  return absl::OkStatus();
}

Status MulGradient(GradientContext* c) {
  c->set_input_grad(0, Call(c->scope(), "Mul", {c->dense_grad(), c->input(1)}));
  c->set_input_grad(1, Call(c->scope(), "Mul", {c->dense_grad(), c->input(0)}));
  return absl::OkStatus();
}

Status TwoOutputsGradient(GradientContext* c) {
  const Output first = c->dense_grad(0), second = c->dense_grad(1);
  const Output both[] = {first, second, second};
  c->set_input_grad(
      0, NodeBuilder(c->scope(), "AddN").Input(absl::MakeConstSpan(both)).Finish().output(0));
  return absl::OkStatus();
}

// Wrong on purpose: the gradient has not the shape of the input.
Status WrongShapeGradient(GradientContext* c) {
  c->set_input_grad(0, Constant(c->scope(), Tensor::Vector<float>({1, 2, 3, 4, 5})));
  return absl::OkStatus();
}
Status WrongTypeGradient(GradientContext* c) {
  c->set_input_grad(0, Constant(c->scope(), Tensor::Scalar<double>(1)));
  return absl::OkStatus();
}

std::vector<Output> TooManyGradients(GradientContext* c) {
  return {c->dense_grad(), c->dense_grad()};
}

Status GatherGradient(GradientContext* c) {
  const Output shape = NodeBuilder(c->scope(), "Shape").Input(c->input(0)).Finish().output(0);
  c->set_input_grad(0, IndexedSlices{c->dense_grad(), c->input(1), shape});
  return absl::OkStatus();
}

Status ResourceGatherGradient(GradientContext* c) {
  const Output shape =
      NodeBuilder(c->scope(), "VariableShape").Input(c->input(0)).Finish().output(0);
  c->set_input_grad(0, IndexedSlices{c->dense_grad(), c->input(1), shape});
  return absl::OkStatus();
}

OpSpec Unary(absl::string_view name) {
  return OpSpec(name).Input("x: T").Output("y: T").Attr("T: type").Shape(UnchangedShape);
}
OpSpec Binary(absl::string_view name) {
  return OpSpec(name).Input("x: T").Input("y: T").Output("z: T").Attr("T: type").Shape(
      BroadcastBinaryShape);
}

const OpRegistration kOps[] = {
    OpSpec("Const")
        .SameEachStep()
        .Output("output: dtype")
        .Attr("value: tensor")
        .Attr("dtype: type")
        .Shape(ConstShape),
    OpSpec("Placeholder")
        .ToBeFed(Feeding::kRequired)
        .Output("output: dtype")
        .Attr("dtype: type")
        .Attr("shape: shape = {unknown_rank: true}")
        .Shape(ShapeOfAttr),
    OpSpec("NoOp").Shape(NoOutputShape),
    OpSpec("Identity")
        .HandsOn(HandsOn::kValueAndGradient)
        .Input("input: T")
        .Output("output: T")
        .Attr("T: type")
        .Shape(UnchangedShape)
        .Gradient(PassOn),
    Binary("Add").Gradient(PassOn),
    Binary("Mul").Gradient(MulGradient),
    OpSpec("AddN")
        .Input("inputs: N * T")
        .Output("sum: T")
        .Attr("N: int >= 1")
        .Attr("T: type")
        .Shape(UnchangedShape),
    Unary("Floor").NotDifferentiable(),
    Unary("Opaque"),
    Unary("WrongShape").Gradient(WrongShapeGradient),
    Unary("WrongType").Gradient(WrongTypeGradient),
    Unary("TooMany").Gradient(TooManyGradients),
    OpSpec("TwoOutputs")
        .Input("x: T")
        .Output("y: T")
        .Output("z: T")
        .Attr("T: type")
        .Shape(UnchangedShape)
        .Gradient(TwoOutputsGradient),
    Unary("ZerosLike").NotDifferentiable(),
    Unary("OnesLike").NotDifferentiable(),
    OpSpec("Fill")
        .Input("dims: index_type")
        .Input("value: T")
        .Output("output: T")
        .Attr("T: type")
        .Attr("index_type: {int32, int64} = DT_INT32")
        .Shape([](InferenceContext* c) -> Status {
          MR_ASSIGN_OR_RETURN(PartialShape shape, c->input_as_shape(0));
          c->set_output(0, std::move(shape));
          return absl::OkStatus();
        }),
    OpSpec("Cast")
        .Input("x: SrcT")
        .Output("y: DstT")
        .Attr("SrcT: type")
        .Attr("DstT: type")
        .Attr("Truncate: bool = false")
        .Shape(UnchangedShape),
    OpSpec("Equal").Input("x: T").Input("y: T").Output("z: bool").Attr("T: type").Shape(
        BroadcastBinaryShape),
    OpSpec("ConcatV2")
        .Input("values: N * T")
        .Input("axis: Tidx")
        .Output("output: T")
        .Attr("N: int >= 2")
        .Attr("T: type")
        .Attr("Tidx: {int32, int64} = DT_INT32")
        .Shape(ValueDependentShape),
    OpSpec("UnsortedSegmentSum")
        .Input("data: T")
        .Input("segment_ids: Tindices")
        .Input("num_segments: Tnumsegments")
        .Output("output: T")
        .Attr("T: type")
        .Attr("Tindices: {int32, int64}")
        .Attr("Tnumsegments: {int32, int64} = DT_INT32")
        .Shape(ValueDependentShape),
    OpSpec("StridedSlice")
        .Input("input: T")
        .Input("begin: Index")
        .Input("end: Index")
        .Input("strides: Index")
        .Output("output: T")
        .Attr("T: type")
        .Attr("Index: {int32, int64}")
        .Attr("begin_mask: int = 0")
        .Attr("end_mask: int = 0")
        .Attr("ellipsis_mask: int = 0")
        .Attr("new_axis_mask: int = 0")
        .Attr("shrink_axis_mask: int = 0")
        .Shape(ValueDependentShape),
    OpSpec("Shape")
        .DescribesShape()
        .Input("input: T")
        .Output("output: out_type")
        .Attr("T: type")
        .Attr("out_type: {int32, int64} = DT_INT32")
        .Shape(ValueDependentShape)
        .NotDifferentiable(),
    OpSpec("Gather")
        .Input("params: T")
        .Input("indices: Tindices")
        .Output("output: T")
        .Attr("T: type")
        .Attr("Tindices: {int32, int64}")
        .Shape(GatherShape)
        .Gradient(GatherGradient),
    OpSpec("VarHandleOp")
        .MakesVariable()
        .SameEachStep()
        .Output("resource: resource")
        .Attr("container: string = ''")
        .Attr("shared_name: string = ''")
        .Attr("dtype: type")
        .Attr("shape: shape")
        .Stateful()
        .Shape(HandleShape),
    OpSpec("ReadVariableOp")
        .TakesVariable(0, VariableUse::kReads)
        .Input("resource: resource")
        .Output("value: dtype")
        .Attr("dtype: type")
        .Stateful()
        .Shape(ReadShape)
        .Gradient(PassOn),
    OpSpec("AssignVariableOp")
        .Input("resource: resource")
        .Input("value: dtype")
        .Attr("dtype: type")
        .Stateful()
        .Shape(NoOutputShape),
    OpSpec("VariableShape")
        .TakesVariable(0, VariableUse::kAsks)
        .Input("input: resource")
        .Output("output: out_type")
        .Attr("out_type: {int32, int64} = DT_INT32")
        .Stateful()
        .Shape(ValueDependentShape),
    OpSpec("ResourceGather")
        .TakesVariable(0, VariableUse::kReadsRows)
        .Input("resource: resource")
        .Input("indices: Tindices")
        .Output("output: dtype")
        .Attr("dtype: type")
        .Attr("Tindices: {int32, int64}")
        .Stateful()
        .Shape(GatherShape)
        .Gradient(ResourceGatherGradient),
    OpSpec("VariableV2")
        .MakesVariable()
        .Output("ref: Ref(dtype)")
        .Attr("shape: shape")
        .Attr("dtype: type")
        .Stateful()
        .Shape(ShapeOfAttr),
    OpSpec("Assign")
        .Input("ref: Ref(T)")
        .Input("value: T")
        .Output("output_ref: Ref(T)")
        .Attr("T: type")
        .AllowsUninitializedInput()
        .Shape(UnchangedShape),
    OpSpec("Switch")
        .Input("data: T")
        .Input("pred: bool")
        .Output("output_false: T")
        .Output("output_true: T")
        .Attr("T: type")
        .Shape(SwitchShape)
        .Gradient(GradientOfSwitch),
    OpSpec("Merge")
        .Input("inputs: N * T")
        .Output("output: T")
        .Output("value_index: int32")
        .Attr("T: type")
        .Attr("N: int >= 1")
        .Shape(MergeShape)
        .Gradient(GradientOfMerge),
    OpSpec("Enter")
        .Input("data: T")
        .Output("output: T")
        .Attr("T: type")
        .Attr("frame_name: string")
        .Attr("is_constant: bool = false")
        .Attr("parallel_iterations: int = 10")
        .Shape(UnchangedShape),
    Unary("Exit"),
    Unary("NextIteration"),
    OpSpec("LoopCond").Input("input: bool").Output("output: bool").Shape(UnchangedShape),
};

}  // namespace
}  // namespace millrace::testing
