// SPDX-License-Identifier: Apache-2.0
#include "runtime/testing/op_test.h"

#include <algorithm>
#include <exception>
#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "core/arena.h"
#include "core/io_pool.h"
#include "core/notification.h"
#include "graph/graph.h"
#include "graph/later_attrs.h"
#include "graph/node_builder.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"
#include "runtime/resource_manager.h"
#include "runtime/testing/op_test_internal.h"

namespace millrace {

using op_test_internal::HandleDataOf;
using op_test_internal::MakeNodeKernel;
using op_test_internal::RunNode;
using op_test_internal::Trace;
using ::testing::ScopedTrace;

namespace {

constexpr char kDeviceName[] = "/job:localhost/replica:0/task:0/device:CPU:0";

// --- The nodes that stand for inputs -----------------------------------------------------------

Status TestInputShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, shape);
  MR_ASSIGN_OR_RETURN(const DType handle_dtype, c->GetAttr<DType>("handle_dtype"));
  MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  if (dtype == DT_RESOURCE) {
    MR_ASSIGN_OR_RETURN(const PartialShape handle_shape, c->GetAttr<PartialShape>("handle_shape"));
    c->set_output_handle(0, {handle_dtype, handle_shape});
  }
  return absl::OkStatus();
}

OpSpec TestInputSpec(absl::string_view name, absl::string_view output) {
  return OpSpec(name)
      .Output(output)
      .Attr("dtype: type")
      .Attr("shape: shape = { unknown_rank: true }")
      .Attr("handle_dtype: type = DT_FLOAT")
      .Attr("handle_shape: shape = { unknown_rank: true }")
      .Stateful()
      .Shape(TestInputShape)
      .NotDifferentiable();
}

const OpRegistration kTestInput = TestInputSpec("_OpTestInput", "value: dtype");
const OpRegistration kTestRefInput = TestInputSpec("_OpTestRefInput", "ref: Ref(dtype)");

std::string ShapesText(absl::Span<const PartialShape> shapes) {
  return absl::StrJoin(shapes, ";", [](std::string* out, const PartialShape& shape) {
    out->append(shape.ToString());
  });
}

// Constants for a shape function, without a graph.
class GivenConstants : public InferenceContext::Source {
 public:
  explicit GivenConstants(std::vector<const Tensor*> values) : values_(std::move(values)) {}
  const Tensor* ConstantInput(int i) override { return values_[static_cast<size_t>(i)]; }
  StatusOr<PartialShape> ShapeInput(int i) override {
    const Tensor* value = ConstantInput(i);
    return value == nullptr ? PartialShape() : ShapeOfElements(*value);
  }
  std::optional<PartialValue> PartialInput(int) override { return std::nullopt; }

 private:
  std::vector<const Tensor*> values_;
};

StatusOr<std::vector<PartialShape>> Infer(const NodeAttrs& attrs, const OpEntry& entry,
                                          std::vector<PartialShape> inputs,
                                          std::vector<std::optional<HandleData>> handles,
                                          std::vector<const Tensor*> constants) {
  const tensorflow::NodeDef& node = attrs.node();
  std::vector<DType> input_types, output_types;
  MR_RETURN_IF_ERROR(NodeTypes(node, entry.def, &input_types, &output_types));
  if (input_types.size() != inputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(node.op(), " must have ", input_types.size(), " inputs, got ", inputs.size()));
  }
  GivenConstants source(std::move(constants));
  InferenceContext context(attrs, &entry.def, std::move(inputs), std::move(handles),
                           static_cast<int>(output_types.size()), &source);
  MR_RETURN_IF_ERROR(entry.shape_fn(&context));
  return context.outputs();
}

// Null unless the value is a reference.
std::shared_ptr<VariableStorage> VariableOf(const EdgeValue& value) {
  if (!value.is_reference()) return nullptr;
  return std::static_pointer_cast<VariableStorage>(value.reference());
}

// --- Running one kernel ------------------------------------------------------------------------

Status RunKernel(const Kernel& kernel, KernelContext* context) {
  try {
    const AsyncKernel* async = kernel.AsAsync();
    if (async == nullptr) return kernel.Compute(context);
    Notification done;
    Status result;
    async->ComputeAsync(context, [&](Status status) {
      result = std::move(status);
      done.Notify();
    });
    done.Wait();
    return result;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

// The value of a reference where the op takes a value, as the executor reads it before the kernel.
Status ReadRefs(const Node& node, std::vector<EdgeValue>* inputs) {
  for (size_t i = 0; i < inputs->size(); ++i) {
    EdgeValue& in = (*inputs)[i];
    const std::shared_ptr<VariableStorage> variable = VariableOf(in);
    if (variable == nullptr) continue;
    if (!variable->IsInitialized()) {
      if (node.op_entry()->def.allows_uninitialized_input()) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("Attempting to use uninitialized value ", variable->name()));
    }
    if (!IsRef(node.input_type(static_cast<int>(i)))) {
      MR_ASSIGN_OR_RETURN(in, variable->Read());
    }
  }
  return absl::OkStatus();
}

// Elements are bytes, or compared one by one; resources and variants are not compared.
bool CanCompare(const Tensor& t) {
  return t.has_value() && !t.is_reference() && t.dtype() != DT_RESOURCE && t.dtype() != DT_VARIANT;
}

}  // namespace

namespace op_test_internal {

ScopedTrace Trace(std::source_location where) {
  return ScopedTrace(where.file_name(), static_cast<int>(where.line()), "called here");
}

std::optional<HandleData> HandleDataOf(const Tensor& tensor) {
  if (tensor.dtype() != DT_RESOURCE || tensor.num_elements() != 1) return std::nullopt;
  const ResourceHandle& handle = tensor.scalar<ResourceHandle>();
  if (handle.dtypes.size() != 1 || handle.shapes.size() != 1) return std::nullopt;
  return HandleData{handle.dtypes[0], handle.shapes[0]};
}

StatusOr<std::unique_ptr<Kernel>> MakeNodeKernel(const Node& node, OpTestDevice* device) {
  const NamedAttrs attrs(node);
  KernelConstruction construction(attrs.attrs(), &node.op_entry()->def, device->device(),
                                  node.input_types(), node.output_types(), kGraphVersion);
  construction.set_functions(device->functions(), node.graph()->shared_library());
  return MakeKernel(&construction);
}

StatusOr<std::vector<EdgeValue>> RunNode(const Node& node, const Kernel& kernel,
                                         OpTestDevice* device, std::vector<EdgeValue> inputs) {
  MR_RETURN_IF_ERROR(ReadRefs(node, &inputs));
  std::vector<EdgeValue> outputs(static_cast<size_t>(node.num_outputs()));
  KernelFrame frame{.step = &device->step(),
                    .node_name = &node.name(),
                    .inputs = inputs.data(),
                    .outputs = outputs.data(),
                    .output_types = node.output_types().data(),
                    .num_inputs = static_cast<uint32_t>(inputs.size()),
                    .num_outputs = static_cast<uint32_t>(outputs.size())};
  for (const EdgeValue& in : inputs) frame.is_input_dead |= !in.has_value();
  KernelContext context(&frame);
  MR_RETURN_IF_ERROR(RunKernel(kernel, &context));
  return outputs;
}

}  // namespace op_test_internal

// --- OpTestDevice ------------------------------------------------------------------------------

OpTestDevice::OpTestDevice(int num_threads)
    : arena_(Arena::Make(num_threads)),
      rendezvous_(MakeLocalRendezvous()),
      step_resources_(kDeviceName) {
  device_.name = kDeviceName;
  device_.type = "CPU";
  device_.incarnation = 1;
  device_.resources = std::make_unique<ResourceManager>(kDeviceName);
  step_.step_id = 1;
  step_.device = &device_;
  step_.rendezvous = rendezvous_;
  step_.cancellation = &cancellation_;
  step_.arena = arena_.get();
  step_.io_pool = IoPool::Default();
  step_.step_resources = &step_resources_;
  step_.session_handle = "op_test";
  functions_ = op_test_internal::MakeFunctionRunner(this);
}

OpTestDevice::~OpTestDevice() = default;

std::shared_ptr<VariableStorage> TestVariable(absl::string_view name, const Tensor& value) {
  auto variable =
      std::make_shared<VariableStorage>(std::string(name), value.dtype(), value.shape());
  EXPECT_OK(variable->Assign(value, true));
  return variable;
}

Tensor OpTestDevice::VariableHandle(absl::string_view name, const Tensor& value) {
  Tensor tensor = Handle<VariableStorage>(name, TestVariable(name, value));
  ResourceHandle& handle = tensor.mutable_flat<ResourceHandle>()[0];
  handle.dtypes = {value.dtype()};
  handle.shapes = {value.shape()};
  return tensor;
}

// --- RunOp -------------------------------------------------------------------------------------

class OpRunner {
 public:
  explicit OpRunner(const OpCall& call) : call_(call), device_(call.device_) {
    if (device_ == nullptr) {
      own_device_ = std::make_unique<OpTestDevice>();
      device_ = own_device_.get();
    }
  }

  StatusOr<std::vector<Tensor>> Run() {
    MR_RETURN_IF_ERROR(BuildNode());
    MR_ASSIGN_OR_RETURN(const std::unique_ptr<Kernel> kernel, MakeNodeKernel(*node_, device_));
    std::vector<EdgeValue> inputs = SharedInputs();
    // Shapes of variables as they are before the kernel.
    std::vector<PartialShape> input_shapes;
    for (const EdgeValue& in : inputs) {
      const std::shared_ptr<VariableStorage> variable = VariableOf(in);
      StatusOr<Shape> shape = variable == nullptr ? in.shape() : variable->shape();
      input_shapes.push_back(shape.ok() ? PartialShape(*shape) : variable->declared_shape());
    }
    const bool stateless = !node_->is_stateful() && !HasRefs();
    std::vector<Tensor> before;
    if (stateless) {
      for (const EdgeValue& in : inputs) {
        MR_ASSIGN_OR_RETURN(Tensor copy, CanCompare(in) ? in.Clone() : Tensor());
        before.push_back(std::move(copy));
      }
    }
    MR_ASSIGN_OR_RETURN(std::vector<EdgeValue> edges, RunNode(*node_, *kernel, device_, inputs));
    MR_ASSIGN_OR_RETURN(std::vector<Tensor> outputs, OutputTensors(edges));
    CheckShapes(inputs, input_shapes, outputs);
    if (stateless) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (CanCompare(inputs[i]) && inputs[i] != before[i]) {
          ADD_FAILURE() << call_.op_ << " changed its input " << i << ", which others share: from "
                        << before[i].DebugString() << " to " << inputs[i].DebugString();
          return outputs;
        }
      }
      MR_RETURN_IF_ERROR(RunWithOwnInputs(*kernel, outputs));
    }
    return outputs;
  }

 private:
  Status BuildNode() {
    const Scope named = scope_.WithName(call_.name_);  // outlives the builder
    NodeBuilder builder(named, call_.op_);
    for (const OpCall::Argument& argument : call_.inputs_) {
      std::vector<Output> outputs;
      for (const OpInput& input : argument.inputs) {
        tensorflow::NodeDef def;
        const bool is_ref = input.ref != nullptr;
        def.set_name(absl::StrCat("input_", flat_.size()));
        def.set_op(is_ref ? "_OpTestRefInput" : "_OpTestInput");
        SetAttr(WithoutRef(input.dtype), &(*def.mutable_attr())["dtype"]);
        if (const std::optional<HandleData> data = HandleDataOf(input.tensor)) {
          SetAttr(data->dtype, &(*def.mutable_attr())["handle_dtype"]);
          SetAttr(data->shape, &(*def.mutable_attr())["handle_shape"]);
        }
        MR_ASSIGN_OR_RETURN(Node * node, scope_.graph()->AddNode(std::move(def)));
        MR_RETURN_IF_ERROR(scope_.refiner()->AddNode(*node));
        outputs.emplace_back(node, 0);
        flat_.push_back(&input);
      }
      if (argument.is_list) {
        builder.Input(outputs);
      } else {
        builder.Input(outputs[0]);
      }
    }
    for (const auto& [name, value] : call_.attrs_) builder.Attr(name, value);
    node_ = builder.Finish().operation().node();
    MR_RETURN_IF_ERROR(scope_.status());
    if (node_ == nullptr) return absl::InternalError("NodeBuilder gave no node and no error");
    return absl::OkStatus();
  }

  bool HasRefs() const {
    for (const OpInput* input : flat_) {
      if (input->ref != nullptr) return true;
    }
    return false;
  }

  std::vector<EdgeValue> SharedInputs() const {
    std::vector<EdgeValue> inputs;
    for (const OpInput* input : flat_) {
      if (!input->has_value) {
        inputs.emplace_back();
      } else if (input->ref != nullptr) {
        inputs.push_back(Tensor::Reference(RefOf(input->ref->dtype()), input->ref));
      } else {
        inputs.push_back(input->tensor);
      }
    }
    return inputs;
  }

  StatusOr<std::vector<Tensor>> OutputTensors(const std::vector<EdgeValue>& edges) const {
    std::vector<Tensor> outputs;
    for (int i = 0; i < node_->num_outputs(); ++i) {
      const EdgeValue& edge = edges[static_cast<size_t>(i)];
      const DType want = WithoutRef(node_->output_type(i));
      if (!edge.has_value()) {
        if (!call_.allow_dead_) {
          ADD_FAILURE() << "Missing output " << i << " of " << call_.op_;
        }
        outputs.emplace_back();
        continue;
      }
      Tensor value = edge;
      if (const std::shared_ptr<VariableStorage> variable = VariableOf(edge)) {
        EXPECT_EQ(variable->dtype(), want) << "output " << i << " of " << call_.op_;
        StatusOr<Tensor> read = variable->Read();
        if (!read.ok()) {  // a variable that has no value yet
          outputs.emplace_back();
          continue;
        }
        value = *std::move(read);
      } else {
        EXPECT_FALSE(IsRef(node_->output_type(i)))
            << "output " << i << " of " << call_.op_ << " must be a reference";
      }
      EXPECT_EQ(DTypeName(value.dtype()), DTypeName(want)) << "output " << i << " of " << call_.op_;
      outputs.push_back(std::move(value));
    }
    return outputs;
  }

  // Static shapes must allow what the kernel made, however much is known.
  void CheckShapes(const std::vector<EdgeValue>& inputs,
                   const std::vector<PartialShape>& input_shapes,
                   const std::vector<Tensor>& outputs) const {
    for (const char* known : {"shapes and constants", "shapes", "nothing"}) {
      std::vector<PartialShape> shapes;
      std::vector<std::optional<HandleData>> handles;
      std::vector<const Tensor*> constants;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const EdgeValue& in = inputs[i];
        const bool has_shape = in.has_value() && absl::string_view(known) != "nothing";
        shapes.push_back(has_shape ? input_shapes[i] : PartialShape());
        handles.push_back(absl::string_view(known) == "nothing" ? std::nullopt : HandleDataOf(in));
        const bool constant = absl::string_view(known) == "shapes and constants" &&
                              in.has_value() && !in.is_reference() && in.dtype() != DT_RESOURCE;
        constants.push_back(constant ? &in : nullptr);
      }
      const StatusOr<std::vector<PartialShape>> inferred =
          Infer(node_->attrs(), *node_->op_entry(), shapes, handles, constants);
      if (!inferred.ok()) {
        ADD_FAILURE() << "The shape function of " << call_.op_ << " refuses, knowing " << known
                      << " of inputs " << ShapesText(shapes)
                      << ", what the kernel accepts: " << inferred.status();
        return;
      }
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (!outputs[i].has_value() || (*inferred)[i].IsCompatibleWith(outputs[i].shape())) {
          continue;
        }
        ADD_FAILURE() << "output " << i << " of " << call_.op_ << ": inferred "
                      << (*inferred)[i].ToString() << ", knowing " << known << " of inputs "
                      << ShapesText(shapes) << ", got " << outputs[i].shape().ToString();
        return;
      }
    }
  }

  // Again, with inputs whose memory nobody else uses: the kernel may write into it.
  Status RunWithOwnInputs(const Kernel& kernel, const std::vector<Tensor>& expected) {
    std::vector<EdgeValue> inputs = SharedInputs();
    for (EdgeValue& in : inputs) {
      if (in.has_value()) {
        MR_ASSIGN_OR_RETURN(in, in.Clone());
      }
    }
    MR_ASSIGN_OR_RETURN(const std::vector<EdgeValue> edges,
                        RunNode(*node_, kernel, device_, std::move(inputs)));
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> outputs, OutputTensors(edges));
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!CanCompare(outputs[i]) || !CanCompare(expected[i])) continue;
      EXPECT_TRUE(outputs[i] == expected[i])
          << "output " << i << " of " << call_.op_
          << " differs when inputs may be overwritten: " << outputs[i].DebugString()
          << " instead of " << expected[i].DebugString();
    }
    return absl::OkStatus();
  }

  const OpCall& call_;
  std::unique_ptr<OpTestDevice> own_device_;
  OpTestDevice* device_;
  Scope scope_;
  std::vector<const OpInput*> flat_;
  Node* node_ = nullptr;
};

StatusOr<std::vector<Tensor>> RunOp(const OpCall& call, std::source_location where) {
  const ScopedTrace trace = Trace(where);
  return OpRunner(call).Run();
}

Tensor RunOp1(const OpCall& call, std::source_location where) {
  const ScopedTrace trace = Trace(where);
  StatusOr<std::vector<Tensor>> outputs = OpRunner(call).Run();
  if (!outputs.ok()) {
    ADD_FAILURE() << outputs.status();
    return Tensor();
  }
  if (outputs->empty()) {
    ADD_FAILURE() << "the op has no output";
    return Tensor();
  }
  return std::move(outputs->front());
}

void ExpectOpError(const OpCall& call, absl::StatusCode code, absl::string_view text,
                   std::source_location where) {
  const ScopedTrace trace = Trace(where);
  EXPECT_STATUS(OpRunner(call).Run(), code, text);
}

// --- Shape functions ---------------------------------------------------------------------------

namespace {

const tensorflow::OpDef::AttrDef* FindAttrDef(const tensorflow::OpDef& op, absl::string_view name) {
  for (const auto& attr : op.attr()) {
    if (attr.name() == name) return &attr;
  }
  return nullptr;
}

// Inputs of an argument whose length is known from the attrs; -1 when it is not yet.
int KnownLength(const tensorflow::OpDef::ArgDef& arg, const tensorflow::NodeDef& node) {
  const std::string& attr = arg.number_attr().empty() ? arg.type_list_attr() : arg.number_attr();
  if (attr.empty()) return 1;
  const auto it = node.attr().find(attr);
  if (it == node.attr().end()) return -1;
  return arg.number_attr().empty() ? it->second.list().type_size()
                                   : static_cast<int>(it->second.i());
}

DType AnyAllowedType(const tensorflow::OpDef::AttrDef& attr) {
  const auto& allowed = attr.allowed_values().list().type();
  if (allowed.empty()) return DT_FLOAT;
  for (const int type : allowed) {
    if (type == DT_FLOAT) return DT_FLOAT;
  }
  return static_cast<DType>(allowed.Get(0));
}

// Attrs that the call leaves to be inferred.
void CompleteAttrs(const tensorflow::OpDef& op, absl::Span<const ShapeInput> inputs,
                   tensorflow::NodeDef* node) {
  // Lengths: one list argument may take what the others leave.
  int others = 0;
  int open_lists = 0;
  for (const auto& arg : op.input_arg()) {
    const int length = KnownLength(arg, *node);
    length < 0 ? ++open_lists : others += length;
  }
  int next = 0;
  for (const auto& arg : op.input_arg()) {
    int length = KnownLength(arg, *node);
    if (length < 0) {
      length = std::max(0, (static_cast<int>(inputs.size()) - others) / std::max(1, open_lists));
    }
    auto* attrs = node->mutable_attr();
    if (!arg.number_attr().empty() && attrs->count(arg.number_attr()) == 0) {
      SetAttr(int64_t{length}, &(*attrs)[arg.number_attr()]);
    }
    std::vector<DType> types;
    for (int i = next; i < next + length && i < static_cast<int>(inputs.size()); ++i) {
      const Tensor& constant = inputs[static_cast<size_t>(i)].constant;
      types.push_back(constant.has_value() ? constant.dtype() : DT_FLOAT);
      if (constant.has_value() && !arg.type_attr().empty() && attrs->count(arg.type_attr()) == 0) {
        SetAttr(constant.dtype(), &(*attrs)[arg.type_attr()]);
      }
    }
    if (!arg.type_list_attr().empty() && attrs->count(arg.type_list_attr()) == 0) {
      SetAttr(types, &(*attrs)[arg.type_list_attr()]);
    }
    next += length;
  }
  AddDefaultAttrs(op, node);
  for (const auto& attr : op.attr()) {
    if (attr.type() == "type" && node->attr().count(attr.name()) == 0) {
      SetAttr(AnyAllowedType(attr), &(*node->mutable_attr())[attr.name()]);
    }
  }
}

StatusOr<std::string> InferText(absl::string_view op, absl::Span<const OpAttr> attrs,
                                absl::Span<const ShapeInput> inputs) {
  MR_ASSIGN_OR_RETURN(const OpEntry* entry, FindOp(op));
  tensorflow::NodeDef node;
  node.set_name("op");
  node.set_op(std::string(op));
  for (const OpAttr& attr : attrs) {
    if (FindAttrDef(entry->def, attr.name) == nullptr && !HeedsLaterAttr(op, attr.name)) {
      return absl::InternalError(absl::StrCat("test: ", op, " has no attr ", attr.name));
    }
    (*node.mutable_attr())[attr.name] = attr.value;
  }
  CompleteAttrs(entry->def, inputs, &node);
  std::vector<PartialShape> shapes;
  std::vector<std::optional<HandleData>> handles;
  std::vector<const Tensor*> constants;
  for (const ShapeInput& input : inputs) {
    if (input.constant.has_value()) {
      shapes.emplace_back(input.constant.shape());
      constants.push_back(&input.constant);
    } else {
      MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Parse(input.shape_text));
      shapes.push_back(std::move(shape));
      constants.push_back(nullptr);
    }
    if (input.handle_dtype != DT_INVALID) {
      MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Parse(input.handle_shape));
      handles.push_back(HandleData{input.handle_dtype, std::move(shape)});
    } else {
      handles.push_back(HandleDataOf(input.constant));
    }
  }
  MR_ASSIGN_OR_RETURN(const std::vector<PartialShape> outputs,
                      Infer(&node, *entry, std::move(shapes), std::move(handles), constants));
  return ShapesText(outputs);
}

}  // namespace

StatusOr<std::string> InferShapeText(absl::string_view op, std::initializer_list<OpAttr> attrs,
                                     std::initializer_list<ShapeInput> inputs) {
  return InferText(op, absl::MakeConstSpan(attrs.begin(), attrs.size()),
                   absl::MakeConstSpan(inputs.begin(), inputs.size()));
}

void ExpectShape(absl::string_view op, std::initializer_list<OpAttr> attrs,
                 std::initializer_list<ShapeInput> inputs, absl::string_view outputs,
                 std::source_location where) {
  const ScopedTrace trace = Trace(where);
  const StatusOr<std::string> got = InferShapeText(op, attrs, inputs);
  ASSERT_OK(got);
  EXPECT_EQ(*got, std::string(outputs)) << "output shapes of " << op;
}

void ExpectShapeError(absl::string_view op, std::initializer_list<OpAttr> attrs,
                      std::initializer_list<ShapeInput> inputs, absl::string_view text,
                      std::source_location where) {
  const ScopedTrace trace = Trace(where);
  const StatusOr<std::string> got = InferShapeText(op, attrs, inputs);
  ASSERT_FALSE(got.ok()) << op << " infers " << *got;
  EXPECT_EQ(got.status().code(), absl::StatusCode::kInvalidArgument) << got.status();
  EXPECT_TRUE(absl::StrContains(got.status().message(), text)) << got.status();
}

}  // namespace millrace
