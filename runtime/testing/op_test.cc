// SPDX-License-Identifier: Apache-2.0
#include "runtime/testing/op_test.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <random>
#include <sstream>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/notification.h"
#include "graph/gradient.h"
#include "graph/node_builder.h"
#include "graph/shape_inference.h"

namespace millrace {
namespace {

using ::testing::ScopedTrace;

constexpr char kDeviceName[] = "/job:localhost/replica:0/task:0/device:CPU:0";

// --- The nodes that stand for inputs
// --------------------------------------------------------------

Status TestInputShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(const PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, shape);
  ASSIGN_OR_RETURN(const DType handle_dtype, c->GetAttr<DType>("handle_dtype"));
  ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  if (dtype == DT_RESOURCE) {
    ASSIGN_OR_RETURN(const PartialShape handle_shape, c->GetAttr<PartialShape>("handle_shape"));
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

ScopedTrace Trace(std::source_location where) {
  return ScopedTrace(where.file_name(), static_cast<int>(where.line()), "called here");
}

std::string ShapesText(absl::Span<const PartialShape> shapes) {
  return absl::StrJoin(shapes, ";", [](std::string* out, const PartialShape& shape) {
    out->append(shape.ToString());
  });
}

std::optional<HandleData> HandleDataOf(const Tensor& tensor) {
  if (tensor.dtype() != DT_RESOURCE || tensor.num_elements() != 1) return std::nullopt;
  const ResourceHandle& handle = tensor.scalar<ResourceHandle>();
  if (handle.dtypes.size() != 1 || handle.shapes.size() != 1) return std::nullopt;
  return HandleData{handle.dtypes[0], handle.shapes[0]};
}

// Constants for a shape function, without a graph.
class GivenConstants : public InferenceContext::Source {
 public:
  explicit GivenConstants(std::vector<const Tensor*> values) : values_(std::move(values)) {}
  const Tensor* ConstantInput(int i) override { return values_[static_cast<size_t>(i)]; }
  StatusOr<PartialShape> ShapeInput(int i) override {
    const Tensor* value = ConstantInput(i);
    if (value == nullptr || value->rank() != 1) return PartialShape();
    std::vector<int64_t> dims;
    for (size_t k = 0; k < static_cast<size_t>(value->num_elements()); ++k) {
      const int64_t dim =
          value->dtype() == DT_INT32 ? value->flat<int32_t>()[k] : value->flat<int64_t>()[k];
      dims.push_back(std::max<int64_t>(dim, -1));
    }
    return PartialShape::Make(dims);
  }

 private:
  std::vector<const Tensor*> values_;
};

StatusOr<std::vector<PartialShape>> Infer(const tensorflow::NodeDef& node, const OpEntry& entry,
                                          std::vector<PartialShape> inputs,
                                          std::vector<std::optional<HandleData>> handles,
                                          std::vector<const Tensor*> constants) {
  std::vector<DType> input_types, output_types;
  RETURN_IF_ERROR(NodeTypes(node, entry.def, &input_types, &output_types));
  if (input_types.size() != inputs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(node.op(), " must have ", input_types.size(), " inputs, got ", inputs.size()));
  }
  GivenConstants source(std::move(constants));
  InferenceContext context(&node, &entry.def, std::move(inputs), std::move(handles),
                           static_cast<int>(output_types.size()), &source);
  RETURN_IF_ERROR(entry.shape_fn(&context));
  return context.outputs();
}

// --- Running one kernel
// ---------------------------------------------------------------------------

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

StatusOr<std::unique_ptr<Kernel>> MakeNodeKernel(const Node& node, OpTestDevice* device) {
  KernelConstruction construction(&node.def(), &node.op_entry()->def, device->device(),
                                  node.input_types(), node.output_types(), kGraphVersion);
  return MakeKernel(&construction);
}

// The value of a reference, as the executor reads it before the kernel.
Status ReadRefs(const Node& node, std::vector<EdgeValue>* inputs) {
  for (size_t i = 0; i < inputs->size(); ++i) {
    EdgeValue& in = (*inputs)[i];
    if (in.ref == nullptr) continue;
    if (in.ref->IsInitialized()) {
      ASSIGN_OR_RETURN(in.tensor, in.ref->Read());
    } else if (!node.op_entry()->def.allows_uninitialized_input()) {
      return absl::FailedPreconditionError(
          absl::StrCat("Attempting to use uninitialized value ", in.ref->name()));
    }
  }
  return absl::OkStatus();
}

StatusOr<std::vector<EdgeValue>> RunNode(const Node& node, const Kernel& kernel,
                                         OpTestDevice* device, std::vector<EdgeValue> inputs) {
  RETURN_IF_ERROR(ReadRefs(node, &inputs));
  std::vector<EdgeValue> outputs(static_cast<size_t>(node.num_outputs()));
  KernelContext::Params params;
  params.step = &device->step();
  params.node_name = &node.name();
  params.inputs = absl::MakeSpan(inputs);
  params.output_types = node.output_types();
  params.outputs = absl::MakeSpan(outputs);
  for (const EdgeValue& in : inputs) params.is_input_dead |= !in.has_value;
  KernelContext context(params);
  RETURN_IF_ERROR(RunKernel(kernel, &context));
  return outputs;
}

// Elements are bytes, or compared one by one; resources and variants are not compared.
bool CanCompare(const Tensor& t) {
  return t.has_value() && t.dtype() != DT_RESOURCE && t.dtype() != DT_VARIANT;
}

}  // namespace

// --- OpTestDevice
// ---------------------------------------------------------------------------------

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

// --- RunOp
// ----------------------------------------------------------------------------------------

class OpRunner {
 public:
  explicit OpRunner(const OpCall& call) : call_(call), device_(call.device_) {
    if (device_ == nullptr) {
      own_device_ = std::make_unique<OpTestDevice>();
      device_ = own_device_.get();
    }
  }

  StatusOr<std::vector<Tensor>> Run() {
    RETURN_IF_ERROR(BuildNode());
    ASSIGN_OR_RETURN(const std::unique_ptr<Kernel> kernel, MakeNodeKernel(*node_, device_));
    std::vector<EdgeValue> inputs = SharedInputs();
    // Shapes of variables as they are before the kernel.
    std::vector<Shape> input_shapes;
    for (const EdgeValue& in : inputs) {
      StatusOr<Shape> shape = in.ref == nullptr ? in.tensor.shape() : in.ref->shape();
      input_shapes.push_back(shape.ok() ? *shape : Shape());
    }
    const bool stateless = !node_->is_stateful() && !HasRefs();
    std::vector<Tensor> before;
    if (stateless) {
      for (const EdgeValue& in : inputs) {
        ASSIGN_OR_RETURN(Tensor copy, CanCompare(in.tensor) ? in.tensor.Clone() : Tensor());
        before.push_back(std::move(copy));
      }
    }
    ASSIGN_OR_RETURN(std::vector<EdgeValue> edges, RunNode(*node_, *kernel, device_, inputs));
    ASSIGN_OR_RETURN(std::vector<Tensor> outputs, OutputTensors(edges));
    CheckShapes(inputs, input_shapes, outputs);
    if (stateless) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (CanCompare(inputs[i].tensor) && inputs[i].tensor != before[i]) {
          ADD_FAILURE() << call_.op_ << " changed its input " << i << ", which others share: from "
                        << before[i].DebugString() << " to " << inputs[i].tensor.DebugString();
          return outputs;
        }
      }
      RETURN_IF_ERROR(RunWithOwnInputs(*kernel, outputs));
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
        ASSIGN_OR_RETURN(Node * node, scope_.graph()->AddNode(std::move(def)));
        RETURN_IF_ERROR(scope_.refiner()->AddNode(*node));
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
    RETURN_IF_ERROR(scope_.status());
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
      inputs.push_back({input->tensor, input->ref, input->has_value});
    }
    return inputs;
  }

  StatusOr<std::vector<Tensor>> OutputTensors(const std::vector<EdgeValue>& edges) const {
    std::vector<Tensor> outputs;
    for (int i = 0; i < node_->num_outputs(); ++i) {
      const EdgeValue& edge = edges[static_cast<size_t>(i)];
      const DType want = WithoutRef(node_->output_type(i));
      if (!edge.has_value) {
        if (!call_.allow_dead_) {
          ADD_FAILURE() << "Missing output " << i << " of " << call_.op_;
        }
        outputs.emplace_back();
        continue;
      }
      Tensor value = edge.tensor;
      if (edge.ref != nullptr) {
        EXPECT_EQ(edge.ref->dtype(), want) << "output " << i << " of " << call_.op_;
        StatusOr<Tensor> read = edge.ref->Read();
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
  void CheckShapes(const std::vector<EdgeValue>& inputs, const std::vector<Shape>& input_shapes,
                   const std::vector<Tensor>& outputs) const {
    for (const char* known : {"shapes and constants", "shapes", "nothing"}) {
      std::vector<PartialShape> shapes;
      std::vector<std::optional<HandleData>> handles;
      std::vector<const Tensor*> constants;
      for (size_t i = 0; i < inputs.size(); ++i) {
        const EdgeValue& in = inputs[i];
        const bool has_shape = in.has_value && absl::string_view(known) != "nothing" &&
                               (in.ref == nullptr || in.ref->IsInitialized());
        shapes.push_back(has_shape ? PartialShape(input_shapes[i]) : PartialShape());
        handles.push_back(absl::string_view(known) == "nothing" ? std::nullopt
                                                                : HandleDataOf(in.tensor));
        const bool constant = absl::string_view(known) == "shapes and constants" && in.has_value &&
                              in.ref == nullptr && in.tensor.dtype() != DT_RESOURCE;
        constants.push_back(constant ? &in.tensor : nullptr);
      }
      const StatusOr<std::vector<PartialShape>> inferred =
          Infer(node_->def(), *node_->op_entry(), shapes, handles, constants);
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
      if (in.has_value) {
        ASSIGN_OR_RETURN(in.tensor, in.tensor.Clone());
      }
    }
    ASSIGN_OR_RETURN(const std::vector<EdgeValue> edges,
                     RunNode(*node_, kernel, device_, std::move(inputs)));
    ASSIGN_OR_RETURN(const std::vector<Tensor> outputs, OutputTensors(edges));
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

// --- Shape functions
// ------------------------------------------------------------------------------

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
  ASSIGN_OR_RETURN(const OpEntry* entry, FindOp(op));
  tensorflow::NodeDef node;
  node.set_name("op");
  node.set_op(std::string(op));
  for (const OpAttr& attr : attrs) {
    if (FindAttrDef(entry->def, attr.name) == nullptr) {
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
      ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Parse(input.shape_text));
      shapes.push_back(std::move(shape));
      constants.push_back(nullptr);
    }
    if (input.handle_dtype != DT_INVALID) {
      ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Parse(input.handle_shape));
      handles.push_back(HandleData{input.handle_dtype, std::move(shape)});
    } else {
      handles.push_back(HandleDataOf(input.constant));
    }
  }
  ASSIGN_OR_RETURN(const std::vector<PartialShape> outputs,
                   Infer(node, *entry, std::move(shapes), std::move(handles), constants));
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

// --- Small graphs
// ---------------------------------------------------------------------------------

namespace {

Output TestInputNode(const Scope& scope, DType dtype, const PartialShape& shape,
                     const std::optional<HandleData>& handle) {
  const Scope named = scope.WithName("input");
  NodeBuilder builder(named, "_OpTestInput");
  builder.Attr("dtype", dtype).Attr("shape", shape);
  if (handle) builder.Attr("handle_dtype", handle->dtype).Attr("handle_shape", handle->shape);
  return builder.Finish().output(0);
}

// Nodes in an order in which they can run one after the other, with their kernels.
class NodeOrder {
 public:
  NodeOrder(OpTestDevice* device) : device_(device) {}

  Status Build(absl::Span<const Output> fetches, absl::Span<const Output> feeds) {
    for (const Output& feed : feeds) fed_[feed] = true;
    for (const Output& fetch : fetches) {
      if (!fetch.valid()) return absl::InvalidArgumentError("a fetch is no output of a node");
      RETURN_IF_ERROR(Visit(fetch));
    }
    fetches_.assign(fetches.begin(), fetches.end());
    return absl::OkStatus();
  }

  StatusOr<std::vector<Tensor>> Run(const std::vector<std::pair<Output, Tensor>>& feeds) {
    absl::flat_hash_map<Output, EdgeValue> values;
    absl::flat_hash_map<const Node*, bool> dead_nodes;
    for (const auto& [output, tensor] : feeds) values[output] = {tensor, nullptr, true};
    for (const auto& step : steps_) {
      const Node& node = *step.node;
      std::vector<EdgeValue> inputs;
      size_t dead = 0;
      for (const OutputRef& in : node.inputs()) {
        inputs.push_back(values[Output(in.node, in.index)]);
        if (!inputs.back().has_value) ++dead;
      }
      bool is_dead = node.is_merge() ? dead == inputs.size() : dead > 0;
      for (const Node* control : node.control_inputs()) {
        is_dead |= !node.is_merge() && dead_nodes[control];
      }
      dead_nodes[&node] = is_dead;
      if (is_dead) continue;
      std::unique_ptr<Kernel> fresh;
      const Kernel* kernel = step.kernel.get();
      if (kernel == nullptr) {  // stateful: each run begins anew
        ASSIGN_OR_RETURN(fresh, MakeNodeKernel(node, device_));
        kernel = fresh.get();
      }
      StatusOr<std::vector<EdgeValue>> outputs = RunNode(node, *kernel, device_, std::move(inputs));
      if (!outputs.ok()) {
        return Prefixed(absl::StrCat(node.op(), " '", node.name(), "'"), outputs.status());
      }
      for (int i = 0; i < node.num_outputs(); ++i) {
        // Not what was fed.
        values.try_emplace(Output(step.node, i), (*outputs)[static_cast<size_t>(i)]);
      }
    }
    std::vector<Tensor> result;
    for (const Output& fetch : fetches_) {
      const EdgeValue& value = values[fetch];
      if (!value.has_value) {
        return absl::InvalidArgumentError(
            absl::StrCat("The tensor returned for ", fetch.name(), " was not valid."));
      }
      if (value.ref != nullptr) {
        ASSIGN_OR_RETURN(Tensor read, value.ref->Read());
        result.push_back(std::move(read));
      } else {
        result.push_back(value.tensor);
      }
    }
    return result;
  }

 private:
  struct Step {
    Node* node;
    std::unique_ptr<Kernel> kernel;  // null for stateful nodes
  };

  Status Visit(const Output& output) {
    return fed_.contains(output) ? absl::OkStatus() : VisitNode(output.node());
  }

  Status VisitNode(Node* node) {
    const auto [it, is_new] = state_.try_emplace(node, kOpen);
    if (!is_new) {
      if (it->second == kDone) return absl::OkStatus();
      return absl::UnimplementedError(
          absl::StrCat("'", node->name(), "' is part of a cycle: loops need a session"));
    }
    if (node->op() == "_OpTestInput") {
      return absl::InvalidArgumentError(absl::StrCat("'", node->name(), "' must be fed"));
    }
    for (const OutputRef& in : node->inputs()) RETURN_IF_ERROR(Visit(Output(in.node, in.index)));
    for (Node* control : node->control_inputs()) {
      if (!fed_.contains(Output(control, 0))) RETURN_IF_ERROR(VisitNode(control));
    }
    if (node->op_entry() == nullptr) return FindOp(node->op()).status();
    Step step{node, nullptr};
    if (!node->is_stateful()) {
      StatusOr<std::unique_ptr<Kernel>> kernel = MakeNodeKernel(*node, device_);
      if (!kernel.ok()) return Prefixed(absl::StrCat("'", node->name(), "'"), kernel.status());
      step.kernel = *std::move(kernel);
    }
    steps_.push_back(std::move(step));
    state_[node] = kDone;
    return absl::OkStatus();
  }

  enum State { kOpen, kDone };
  OpTestDevice* device_;
  absl::flat_hash_map<Output, bool> fed_;
  absl::flat_hash_map<Node*, State> state_;
  std::vector<Step> steps_;
  std::vector<Output> fetches_;
};

}  // namespace

Output TestInput(const Scope& scope, DType dtype, const PartialShape& shape) {
  return TestInputNode(scope, dtype, shape, std::nullopt);
}

StatusOr<std::vector<Tensor>> EvaluateGraph(const Scope& scope,
                                            const std::vector<std::pair<Output, Tensor>>& feeds,
                                            const std::vector<Output>& fetches,
                                            OpTestDevice* device) {
  RETURN_IF_ERROR(scope.status());
  std::unique_ptr<OpTestDevice> own_device;
  if (device == nullptr) {
    own_device = std::make_unique<OpTestDevice>();
    device = own_device.get();
  }
  std::vector<Output> fed;
  for (const auto& feed : feeds) fed.push_back(feed.first);
  NodeOrder order(device);
  RETURN_IF_ERROR(order.Build(fetches, fed));
  return order.Run(feeds);
}

// --- Gradients
// ------------------------------------------------------------------------------------

namespace {

// Real components of a floating or complex tensor: complex elements count twice.
size_t NumComponents(const Tensor& t) {
  return static_cast<size_t>(t.num_elements()) * (IsComplex(t.dtype()) ? 2 : 1);
}

double Component(const Tensor& t, size_t i) {
  switch (t.dtype()) {
    case DT_FLOAT:
      return static_cast<double>(t.flat<float>()[i]);
    case DT_DOUBLE:
      return t.flat<double>()[i];
    case DT_HALF:
      return static_cast<double>(ToFloat(t.flat<Half>()[i]));
    case DT_BFLOAT16:
      return static_cast<double>(ToFloat(t.flat<Bfloat16>()[i]));
    case DT_COMPLEX64: {
      const std::complex<float> c = t.flat<std::complex<float>>()[i / 2];
      return static_cast<double>(i % 2 == 0 ? c.real() : c.imag());
    }
    case DT_COMPLEX128: {
      const std::complex<double> c = t.flat<std::complex<double>>()[i / 2];
      return i % 2 == 0 ? c.real() : c.imag();
    }
    default:
      ADD_FAILURE() << "no real number: " << DTypeName(t.dtype());
      return 0;
  }
}

void SetComponent(Tensor* t, size_t i, double value) {
  switch (t->dtype()) {
    case DT_FLOAT:
      t->mutable_flat<float>()[i] = static_cast<float>(value);
      break;
    case DT_DOUBLE:
      t->mutable_flat<double>()[i] = value;
      break;
    case DT_HALF:
      t->mutable_flat<Half>()[i] = ToHalf(static_cast<float>(value));
      break;
    case DT_BFLOAT16:
      t->mutable_flat<Bfloat16>()[i] = ToBfloat16(static_cast<float>(value));
      break;
    case DT_COMPLEX64: {
      std::complex<float>& c = t->mutable_flat<std::complex<float>>()[i / 2];
      i % 2 == 0 ? c.real(static_cast<float>(value)) : c.imag(static_cast<float>(value));
      break;
    }
    case DT_COMPLEX128: {
      std::complex<double>& c = t->mutable_flat<std::complex<double>>()[i / 2];
      i % 2 == 0 ? c.real(value) : c.imag(value);
      break;
    }
    default:
      ADD_FAILURE() << "no real number: " << DTypeName(t->dtype());
  }
}

class GradientCheck {
 public:
  GradientCheck(const BuildOutputs& build, const std::vector<Tensor>& inputs,
                const GradientCheckOptions& options, bool known_shapes)
      : build_(build),
        inputs_(inputs),
        options_(options),
        known_shapes_(known_shapes),
        device_(options.device) {
    if (device_ == nullptr) {
      own_device_ = std::make_unique<OpTestDevice>();
      device_ = own_device_.get();
    }
  }

  Status Run() {
    for (const Tensor& input : inputs_) {
      xs_.push_back(TestInputNode(scope_, input.dtype(),
                                  known_shapes_ ? PartialShape(input.shape()) : PartialShape(),
                                  HandleDataOf(input)));
    }
    ys_ = build_(scope_, xs_);
    RETURN_IF_ERROR(scope_.status());
    NodeOrder forward(device_);
    RETURN_IF_ERROR(forward.Build(ys_, xs_));
    ASSIGN_OR_RETURN(const std::vector<Tensor> y, forward.Run(Feeds()));
    RETURN_IF_ERROR(MakeWeights(y));
    ASSIGN_OR_RETURN(const std::vector<Gradient> gradients, AddSymbolicGradients());
    for (size_t k = 0; k < checked_.size(); ++k) {
      RETURN_IF_ERROR(CheckInput(checked_[k], gradients[k], &forward));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::pair<Output, Tensor>> Feeds() const {
    std::vector<std::pair<Output, Tensor>> feeds;
    for (size_t i = 0; i < xs_.size(); ++i) feeds.emplace_back(xs_[i], inputs_[i]);
    return feeds;
  }

  // Random gradients of the outputs: every output element counts differently.
  Status MakeWeights(const std::vector<Tensor>& y) {
    std::mt19937 random(
        static_cast<uint32_t>(1 + ::testing::UnitTest::GetInstance()->random_seed()));
    std::uniform_real_distribution<double> uniform(0.5, 1.5);
    for (size_t i = 0; i < y.size(); ++i) {
      if (!IsTrainable(y[i].dtype())) {
        return absl::InvalidArgumentError(absl::StrCat("test: output ", i, " must be floating or ",
                                                       "complex, got ", DTypeName(y[i].dtype())));
      }
      ASSIGN_OR_RETURN(Tensor weight, Tensor::Allocate(y[i].dtype(), y[i].shape()));
      for (size_t c = 0; c < NumComponents(weight); ++c) {
        SetComponent(&weight, c, (random() % 2 == 0 ? 1 : -1) * uniform(random));
      }
      grad_ys_.push_back(TestInputNode(scope_, y[i].dtype(),
                                       known_shapes_ ? PartialShape(y[i].shape()) : PartialShape(),
                                       std::nullopt));
      weights_.push_back(std::move(weight));
    }
    return absl::OkStatus();
  }

  StatusOr<std::vector<Gradient>> AddSymbolicGradients() {
    std::vector<Output> wrt;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const DType dtype = inputs_[i].dtype();
      const auto& constant = options_.constant_inputs;
      if (!IsTrainable(dtype) && dtype != DT_RESOURCE) continue;
      if (std::count(constant.begin(), constant.end(), static_cast<int>(i)) > 0) continue;
      checked_.push_back(i);
      wrt.push_back(xs_[i]);
    }
    GradientOptions gradient_options;
    gradient_options.grad_ys = grad_ys_;
    ASSIGN_OR_RETURN(std::vector<Gradient> gradients,
                     AddGradients(scope_, ys_, wrt, gradient_options));
    RETURN_IF_ERROR(scope_.status());
    return gradients;
  }

  // What the finite difference moves: the input itself or the variable behind it.
  StatusOr<Tensor> Value(size_t input) const {
    if (inputs_[input].dtype() != DT_RESOURCE) return inputs_[input];
    ASSIGN_OR_RETURN(auto variable, Variable(input));
    return variable->Read();
  }

  StatusOr<std::shared_ptr<VariableStorage>> Variable(size_t input) const {
    return device_->resources()->Resolve<VariableStorage>(inputs_[input].scalar<ResourceHandle>());
  }

  // sum(weight * y) with `value` as the input's value.
  StatusOr<double> Loss(NodeOrder* forward, size_t input, const Tensor& value) const {
    std::vector<std::pair<Output, Tensor>> feeds = Feeds();
    ASSIGN_OR_RETURN(Tensor copy, value.Clone());
    if (inputs_[input].dtype() == DT_RESOURCE) {
      ASSIGN_OR_RETURN(auto variable, Variable(input));
      RETURN_IF_ERROR(variable->Assign(std::move(copy), false));
    } else {
      feeds[input].second = std::move(copy);
    }
    ASSIGN_OR_RETURN(const std::vector<Tensor> y, forward->Run(feeds));
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      if (y[i].shape() != weights_[i].shape()) {
        return absl::InvalidArgumentError("test: the output's shape depends on the input's value");
      }
      for (size_t c = 0; c < NumComponents(y[i]); ++c) {
        sum += Component(y[i], c) * Component(weights_[i], c);
      }
    }
    return sum;
  }

  Status CheckInput(size_t input, const Gradient& gradient, NodeOrder* forward) {
    ASSIGN_OR_RETURN(const Tensor start, Value(input));
    Tensor analytic;  // no value: no gradient flows, so nothing may depend on the input
    if (HasGradient(gradient)) {
      const Output dense = DenseGradient(scope_, gradient);
      std::vector<std::pair<Output, Tensor>> feeds = Feeds();
      for (size_t i = 0; i < grad_ys_.size(); ++i) feeds.emplace_back(grad_ys_[i], weights_[i]);
      ASSIGN_OR_RETURN(std::vector<Tensor> got, EvaluateGraph(scope_, feeds, {dense}, device_));
      analytic = std::move(got[0]);
      if (analytic.dtype() != start.dtype() || analytic.shape() != start.shape()) {
        return absl::InternalError(
            absl::StrCat("gradient of input ", input, " must be like the input, ",
                         DTypeName(start.dtype()), start.shape().ToString(), ", got ",
                         DTypeName(analytic.dtype()), analytic.shape().ToString()));
      }
      const PartialShape inferred = scope_.shape(dense);
      EXPECT_TRUE(inferred.IsCompatibleWith(analytic.shape()))
          << "inferred " << inferred.ToString() << " for the gradient of input " << input
          << ", got " << analytic.shape().ToString();
    }
    const bool fine = start.dtype() == DT_DOUBLE || start.dtype() == DT_COMPLEX128;
    const double eps = options_.eps > 0 ? options_.eps : fine ? 1e-5 : 1e-2;
    const double tol = options_.tol > 0 ? options_.tol : fine ? 1e-6 : 2e-2;
    for (size_t c = 0; c < NumComponents(start); ++c) {
      const double x = Component(start, c);
      double at[2], loss[2];
      for (int side = 0; side < 2; ++side) {
        ASSIGN_OR_RETURN(Tensor moved, start.Clone());
        SetComponent(&moved, c, side == 0 ? x - eps : x + eps);
        at[side] = Component(moved, c);  // as the type can store it
        ASSIGN_OR_RETURN(loss[side], Loss(forward, input, moved));
      }
      const double numeric = (loss[1] - loss[0]) / (at[1] - at[0]);
      const double symbolic = analytic.has_value() ? Component(analytic, c) : 0;
      const double scale = std::max({1.0, std::abs(numeric), std::abs(symbolic)});
      EXPECT_LE(std::abs(numeric - symbolic), tol * scale)
          << "gradient of input " << input << " at component " << c << ": the graph gives "
          << symbolic << (analytic.has_value() ? "" : " (no gradient)")
          << ", the finite difference " << numeric;
    }
    if (inputs_[input].dtype() == DT_RESOURCE) {
      ASSIGN_OR_RETURN(auto variable, Variable(input));
      RETURN_IF_ERROR(variable->Assign(start, false));
    }
    return absl::OkStatus();
  }

  const BuildOutputs& build_;
  const std::vector<Tensor>& inputs_;
  const GradientCheckOptions& options_;
  const bool known_shapes_;
  std::unique_ptr<OpTestDevice> own_device_;
  OpTestDevice* device_;
  Scope scope_;
  std::vector<Output> xs_, ys_, grad_ys_;
  std::vector<Tensor> weights_;
  std::vector<size_t> checked_;  // inputs by index
};

}  // namespace

void ExpectGradientsMatch(const BuildOutputs& build, const std::vector<Tensor>& inputs,
                          const GradientCheckOptions& options, std::source_location where) {
  const ScopedTrace trace = Trace(where);
  for (const bool known_shapes : {true, false}) {
    if (!known_shapes && !options.also_unknown_shapes) continue;
    const ScopedTrace shapes(__FILE__, __LINE__,
                             known_shapes ? "with static shapes" : "with unknown shapes");
    EXPECT_OK(GradientCheck(build, inputs, options, known_shapes).Run());
  }
}

void ExpectGradientsMatch(const BuildOutput& build, const std::vector<Tensor>& inputs,
                          const GradientCheckOptions& options, std::source_location where) {
  ExpectGradientsMatch(BuildOutputs([&build](const Scope& scope, const std::vector<Output>& x) {
                         return std::vector<Output>{build(scope, x)};
                       }),
                       inputs, options, where);
}

}  // namespace millrace
