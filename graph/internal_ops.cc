// SPDX-License-Identifier: Apache-2.0
//
// The ops that only the runtime puts into graphs: arguments and results of a graph that is called
// (_Arg, _Retval) and the two ends of an edge between partitions or between a client and a
// partition (_Send, _Recv; _HostSend and _HostRecv keep the tensor in host memory). Names and attrs
// are TensorFlow's; the kernels are the runtime's.

#include "core/status.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"

namespace millrace {
namespace {

// The shape that the node's maker knew: attr _output_shapes, unknown without it.
Status RecordedShape(InferenceContext* c) {
  PartialShape shape;
  if (HasAttr(c->node(), "_output_shapes")) {
    MR_ASSIGN_OR_RETURN(const std::vector<PartialShape> shapes,
                        c->GetAttr<std::vector<PartialShape>>("_output_shapes"));
    if (!shapes.empty()) shape = shapes[0];
  }
  c->set_output(0, shape);
  return absl::OkStatus();
}

const OpRegistration kArg = OpSpec("_Arg")
                                .Output("output: T")
                                .Attr("T: type")
                                .Attr("index: int >= 0")
                                .Stateful()
                                .Shape(RecordedShape)
                                .NotDifferentiable();

const OpRegistration kRetval = OpSpec("_Retval")
                                   .Input("input: T")
                                   .Attr("T: type")
                                   .Attr("index: int >= 0")
                                   .Stateful()
                                   .Shape(NoOutputShape)
                                   .NotDifferentiable();

OpSpec SendSpec(absl::string_view name) {
  return OpSpec(name)
      .Input("tensor: T")
      .Attr("T: type")
      .Attr("tensor_name: string")
      .Attr("send_device: string")
      .Attr("send_device_incarnation: int")
      .Attr("recv_device: string")
      .Attr("client_terminated: bool = false")
      .Stateful()
      .Shape(NoOutputShape)
      .NotDifferentiable();
}

OpSpec RecvSpec(absl::string_view name) {
  return OpSpec(name)
      .Output("tensor: tensor_type")
      .Attr("tensor_type: type")
      .Attr("tensor_name: string")
      .Attr("send_device: string")
      .Attr("send_device_incarnation: int")
      .Attr("recv_device: string")
      .Attr("client_terminated: bool = false")
      .Stateful()
      .Shape(RecordedShape)
      .NotDifferentiable();
}

const OpRegistration kSend = SendSpec("_Send");
const OpRegistration kHostSend = SendSpec("_HostSend");
const OpRegistration kRecv = RecvSpec("_Recv");
const OpRegistration kHostRecv = RecvSpec("_HostRecv");

}  // namespace
}  // namespace millrace
