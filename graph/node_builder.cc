// SPDX-License-Identifier: Apache-2.0
#include "graph/node_builder.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/control_flow_context.h"
#include "graph/graph.h"
#include "graph/node_body.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"

namespace millrace {
namespace {

using tensorflow::NodeDef;
using tensorflow::OpDef;

std::string Describe(Output output) {
  return absl::StrCat(DTypeName(output.dtype()), " from '", output.name(), "'");
}

// Why an attr has its value: the input that gave it, "" when the caller gave it.
using AttrOrigins = absl::flat_hash_map<std::string, std::string>;

std::string Because(const AttrOrigins& origins, const std::string& attr) {
  auto it = origins.find(attr);
  if (it == origins.end()) return absl::StrCat(" (attr '", attr, "')");
  return absl::StrCat(" (attr '", attr, "', given by input '", it->second, "')");
}

// Checks one argument's tensors against the OpDef and sets the attrs that they determine.
Status MatchArg(const OpDef::ArgDef& arg, absl::Span<const Output> outputs, bool is_list,
                AttrOrigins* origins, NodeDef* def) {
  auto error = [&](const auto&... parts) {
    return InvalidArgument("input '", arg.name(), "' must ", parts...);
  };
  const bool wants_list = !arg.number_attr().empty() || !arg.type_list_attr().empty();
  if (wants_list != is_list) {
    return wants_list ? error("be a list of tensors, got ", Describe(outputs[0]))
                      : error("be one tensor, got a list of ", outputs.size());
  }
  for (const Output& output : outputs) {
    if (arg.is_ref() && !IsRef(output.dtype())) {
      return error("be a reference (the output of a variable), got ", Describe(output));
    }
  }
  auto& attrs = *def->mutable_attr();
  if (!arg.number_attr().empty()) {
    const int64_t count = static_cast<int64_t>(outputs.size());
    if (attrs.contains(arg.number_attr())) {
      MR_ASSIGN_OR_RETURN(const int64_t given, GetAttr<int64_t>(*def, arg.number_attr()));
      if (given != count) {
        return error("have ", given, " tensors", Because(*origins, arg.number_attr()), ", got ",
                     count);
      }
    } else {
      SetAttr(count, &attrs[arg.number_attr()]);
      origins->emplace(arg.number_attr(), arg.name());
    }
  }
  if (!arg.type_list_attr().empty()) {
    std::vector<DType> types;
    for (const Output& output : outputs) types.push_back(WithoutRef(output.dtype()));
    if (attrs.contains(arg.type_list_attr())) {
      MR_ASSIGN_OR_RETURN(const std::vector<DType> given,
                          GetAttr<std::vector<DType>>(*def, arg.type_list_attr()));
      if (given != types) {
        auto name = [](std::string* out, DType t) { out->append(DTypeName(t)); };
        return error("have types (", absl::StrJoin(given, ", ", name), ")",
                     Because(*origins, arg.type_list_attr()), ", got (",
                     absl::StrJoin(types, ", ", name), ")");
      }
    } else {
      SetAttr(types, &attrs[arg.type_list_attr()]);
      origins->emplace(arg.type_list_attr(), arg.name());
    }
    return absl::OkStatus();
  }
  for (const Output& output : outputs) {
    const DType type = WithoutRef(output.dtype());
    if (arg.type_attr().empty()) {
      if (type != static_cast<DType>(arg.type())) {
        return error("be ", DTypeName(static_cast<DType>(arg.type())), ", got ", Describe(output));
      }
    } else if (attrs.contains(arg.type_attr())) {
      MR_ASSIGN_OR_RETURN(const DType given, GetAttr<DType>(*def, arg.type_attr()));
      if (type != given) {
        return error("be ", DTypeName(given), Because(*origins, arg.type_attr()), ", got ",
                     Describe(output));
      }
    } else if (type != DT_INVALID) {
      SetAttr(type, &attrs[arg.type_attr()]);
      origins->emplace(arg.type_attr(), arg.name());
    }
  }
  return absl::OkStatus();
}

Status MatchInputs(const OpDef& op, absl::Span<const std::pair<bool, absl::Span<const Output>>> in,
                   NodeDef* def) {
  if (in.size() != static_cast<size_t>(op.input_arg_size())) {
    std::vector<std::string> names;
    for (const OpDef::ArgDef& arg : op.input_arg()) names.push_back(arg.name());
    return InvalidArgument("must have ", op.input_arg_size(), " input",
                           op.input_arg_size() == 1 ? "" : "s", " (", absl::StrJoin(names, ", "),
                           "), got ", in.size());
  }
  AttrOrigins origins;
  for (int i = 0; i < op.input_arg_size(); ++i) {
    const auto& [is_list, outputs] = in[static_cast<size_t>(i)];
    MR_RETURN_IF_ERROR(MatchArg(op.input_arg(i), outputs, is_list, &origins, def));
  }
  return absl::OkStatus();
}

}  // namespace

BuiltNode::operator Output() const { return output(0); }

BuiltNode::operator Operation() const { return operation(); }

Output BuiltNode::output(int i) const { return i < num_outputs() ? Output(op_, i) : Output(); }

std::vector<Output> BuiltNode::outputs(int begin, int count) const {
  std::vector<Output> result;
  for (int i = begin; i < begin + count; ++i) result.push_back(output(i));
  return result;
}

int BuiltNode::num_outputs() const { return op_.valid() ? op_.node()->num_outputs() : 0; }

namespace {

// The dtype of input `index`, which is `literal`: what the op, an attr that the caller gives, or
// another input with the same type says; else the attr's default, where it has the values.
DType LiteralType(const OpDef& op, int index, const TensorArg& literal,
                  absl::Span<const BuilderInput> inputs, absl::Span<const BuilderAttr> attrs) {
  const OpDef::ArgDef& arg = op.input_arg(index);
  const std::string& of = arg.type_attr();
  if (of.empty()) {
    return arg.type() == tensorflow::DT_INVALID ? literal.own_type()
                                                : static_cast<DType>(arg.type());
  }
  for (const BuilderAttr& attr : attrs) {
    if (attr.name() != of) continue;
    tensorflow::AttrValue value;
    attr.WriteTo(&value);
    return static_cast<DType>(value.type());
  }
  std::vector<const TensorArg*> literals;  // that have this type
  const int known = std::min(op.input_arg_size(), static_cast<int>(inputs.size()));
  for (int i = 0; i < known; ++i) {
    const BuilderInput& input = inputs[static_cast<size_t>(i)];
    if (op.input_arg(i).type_attr() != of) continue;
    if (input.literal() != nullptr) literals.push_back(input.literal());
    for (const Output& tensor : input.tensors()) {
      if (tensor.valid()) return WithoutRef(tensor.dtype());
    }
  }
  for (const OpDef::AttrDef& attr : op.attr()) {
    if (attr.name() != of || !attr.has_default_value()) continue;
    const DType by_default = static_cast<DType>(attr.default_value().type());
    if (std::all_of(literals.begin(), literals.end(),
                    [&](const TensorArg* one) { return one->As(by_default).ok(); })) {
      return by_default;
    }
  }
  // Of numbers among themselves the widest.
  DType type = literal.own_type();
  for (const TensorArg* one : literals) {
    const DType other = one->own_type();
    const bool is_wider = (type == DT_INT32 && (other == DT_INT64 || other == DT_FLOAT)) ||
                          (type == DT_INT64 && other == DT_FLOAT);
    if (is_wider) type = other;
  }
  return type;
}

// A node some inputs of which are values: these are constants in the scope of the node's name.
BuiltNode BuildNodeOfLiterals(const ScopeAt& at, absl::string_view op,
                              absl::Span<const BuilderInput> inputs,
                              absl::Span<const BuilderAttr> attrs) {
  if (!at.scope.MayBuild(at.where)) return BuiltNode();
  const StatusOr<const OpEntry*> entry = FindOp(op);
  if (!entry.ok()) {
    at.scope.UpdateStatus(entry.status(), at.where);
    return BuiltNode();
  }
  const OpDef& def = (*entry)->def;
  const std::string asked = at.scope.RequestedName(op);
  absl::string_view name = asked;
  std::string unique;
  if (!absl::ConsumeSuffix(&name, "/")) {
    unique = at.scope.UniqueName(asked);
    name = unique;
  }
  const std::string full = absl::StrCat(name, "/");
  const Scope beside = at.scope.WithoutControlDependencies().WithSubScope(full);
  const Scope named = at.scope.WithName(full);
  NodeBuilder builder({named, at.where}, op);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const BuilderInput& input = inputs[i];
    if (input.is_list()) {
      builder.Input(input.tensors());
      continue;
    }
    const TensorArg* const literal = input.literal();
    if (literal == nullptr || i >= static_cast<size_t>(def.input_arg_size())) {
      builder.Input(input.tensors()[0]);
      continue;
    }
    const int index = static_cast<int>(i);
    const std::string& arg = def.input_arg(index).name();
    const StatusOr<Tensor> value = literal->As(LiteralType(def, index, *literal, inputs, attrs));
    if (!value.ok()) {
      at.scope.UpdateStatus(
          Prefixed(absl::StrCat(op, " '", name, "': input '", arg, "'"), value.status()), at.where);
      return BuiltNode();
    }
    const Scope here = beside.WithName(arg);
    builder.Input(NodeBuilder({here, at.where}, "Const")
                      .Attr("dtype", value->dtype())
                      .Value(*value)
                      .Finish()
                      .output(0));
  }
  for (const BuilderAttr& attr : attrs) builder.Attr(attr);
  return builder.Finish();
}

}  // namespace

BuiltNode BuildNode(const ScopeAt& at, absl::string_view op, absl::Span<const BuilderInput> inputs,
                    absl::Span<const BuilderAttr> attrs) {
  for (const BuilderInput& input : inputs) {
    if (input.literal() != nullptr) return BuildNodeOfLiterals(at, op, inputs, attrs);
  }
  NodeBuilder builder(at, op);
  for (const BuilderInput& input : inputs) {
    input.is_list() ? builder.Input(input.tensors()) : builder.Input(input.tensors()[0]);
  }
  for (const BuilderAttr& attr : attrs) builder.Attr(attr);
  return builder.Finish();
}

Output UnaryBuilder::operator()(ScopeAt at, const Output& x) const { return BuildOp(at, op, {x}); }

Output BinaryBuilder::operator()(ScopeAt at, const TensorArg& x, const TensorArg& y) const {
  return BuildOp(at, op, {x, y});
}

NodeBuilder::NodeBuilder(const ScopeAt& at, absl::string_view op)
    : at_(at), def_(std::make_unique<NodeDef>()) {
  def_->set_op(std::string(op));
}

NodeBuilder::~NodeBuilder() = default;

NodeBuilder& NodeBuilder::Attr(const BuilderAttr& attr) {
  attr.WriteTo(&(*def_->mutable_attr())[std::string(attr.name())]);
  return *this;
}

NodeBuilder& NodeBuilder::Value(const Tensor& value) {
  if (!NodeBodies::CanShare(value)) return Attr("value", value);
  value_ = &value;
  tensorflow::TensorProto* const described = (*def_->mutable_attr())["value"].mutable_tensor();
  described->set_dtype(static_cast<tensorflow::DataType>(value.dtype()));
  value.shape().ToProto(described->mutable_tensor_shape());
  return *this;
}

NodeBuilder& NodeBuilder::Input(const Output& input) {
  inputs_.push_back(InputArg{false, {input}});
  return *this;
}

NodeBuilder& NodeBuilder::Input(absl::Span<const Output> inputs) {
  inputs_.push_back(InputArg{true, {inputs.begin(), inputs.end()}});
  return *this;
}

NodeBuilder& NodeBuilder::ControlInput(Operation operation) {
  if (operation.valid()) control_.push_back(operation);
  return *this;
}

NodeBuilder& NodeBuilder::Device(absl::string_view device) {
  def_->set_device(std::string(device));
  own_device_ = true;
  return *this;
}

namespace {

// "input 1 must be ...".
Status Named(const std::string& input, const Status& rule) {
  return Status(rule.code(), absl::StrCat(input, " ", rule.message()));
}

}  // namespace

Status NodeBuilder::AdoptInputs() {
  const Scope& scope = at_.scope;
  const absl::Span<const Operation> of_scope = scope.control_dependencies();
  control_.insert(control_.begin(), of_scope.begin(), of_scope.end());
  if (!scope.has_contexts()) return absl::OkStatus();
  std::vector<Output> adopted;
  int index = 0;
  for (InputArg& arg : inputs_) {
    for (Output& output : arg.outputs) {
      if (!across_contexts_) {
        StatusOr<Output> inside = scope.Adopted(output, def_->op(), at_.where);
        if (!inside.ok()) return Named(absl::StrCat("input ", index), inside.status());
        output = *std::move(inside);
      }
      adopted.push_back(output);
      ++index;
    }
  }
  bool waits = false;  // for something of the same loop
  for (Operation& operation : control_) {
    if (operation.node() == nullptr || operation.node()->graph() != scope.graph()) continue;
    StatusOr<Operation> inside = scope.AdoptedControl(operation, def_->op(), at_.where);
    if (!inside.ok()) return Named("control input", inside.status());
    waits = waits || (inside->node() == operation.node() &&
                      scope.ContextOf(*operation.node()) == scope.context());
    operation = *std::move(inside);
  }
  ControlFlowContext* const context = scope.context();
  if (context != nullptr && !across_contexts_ && !waits && context->WaitsForPivot(adopted)) {
    if (const Operation pivot = context->pivot(); pivot.valid()) control_.push_back(pivot);
  }
  return absl::OkStatus();
}

BuiltNode NodeBuilder::Finish() {
  const Scope& scope = at_.scope;
  if (!scope.MayBuild(at_.where)) return BuiltNode();
  if (scope.context() != nullptr) {
    std::vector<Output> tensors;
    for (const InputArg& arg : inputs_) {
      tensors.insert(tensors.end(), arg.outputs.begin(), arg.outputs.end());
    }
    ControlFlowContext* const home = scope.context()->HomeOfOp(def_->op(), scope, tensors);
    if (home != scope.context()) return FinishIn(home);
  }
  auto fail = [&](const Status& status) {
    scope.UpdateStatus(status, at_.where);
    return BuiltNode();
  };
  StatusOr<const OpEntry*> entry = FindOp(def_->op());
  if (!entry.ok()) return fail(entry.status());

  // Before the node has its own name, messages use the one that was asked for.
  const std::string where = absl::StrCat(def_->op(), " '", scope.AskedName(def_->op()), "'");
  Graph* graph = scope.graph();
  auto is_ours = [&](const Node* node) { return node != nullptr && node->graph() == graph; };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    for (Output& output : inputs_[i].outputs) {
      if (!output.valid()) {
        return fail(InvalidArgument(where, ": input ", i,
                                    " must be the output of a node, got an invalid Output"));
      }
      if (!is_ours(output.node())) {
        StatusOr<Output> captured = scope.Captured(output);
        if (!captured.ok()) {
          return fail(
              absl::Status(captured.status().code(),
                           absl::StrCat(where, ": input ", i, " ", captured.status().message())));
        }
        output = *std::move(captured);
      }
    }
  }
  if (Status s = AdoptInputs(); !s.ok()) return fail(Prefixed(where, s));
  std::vector<std::pair<bool, absl::Span<const Output>>> inputs;
  for (const InputArg& arg : inputs_) inputs.emplace_back(arg.is_list, arg.outputs);
  if (Status s = MatchInputs((*entry)->def, inputs, def_.get()); !s.ok()) {
    return fail(Prefixed(where, s));
  }
  // Device functions see the complete node.
  AddDefaultAttrs((*entry)->def, def_.get());
  if (Status s = scope.Prepare(own_device_, def_.get()); !s.ok()) return fail(s);
  StatusOr<Node*> added =
      value_ != nullptr ? graph->AddConst(*def_, *value_) : graph->AddNode(*def_);
  if (!added.ok()) return fail(added.status());
  Node* node = *added;
  node->set_built_at(absl::StrCat(at_.where.file_name(), ":", at_.where.line()));
  node->set_home(scope.home());

  Status status;
  int index = 0;
  for (const InputArg& arg : inputs_) {
    for (const Output& output : arg.outputs) {
      if (status.ok()) status = graph->AddEdge(output.node(), output.index(), node, index++);
    }
  }
  for (const Operation& operation : control_) {
    if (!is_ours(operation.node())) {
      if (status.ok()) {
        status = InvalidArgument(where, ": control input must be a node of the same graph");
      }
      continue;
    }
    graph->AddControlEdge(operation.node(), node);
  }
  if (status.ok()) status = scope.refiner()->AddNode(*node);
  if (!status.ok()) {
    graph->RemoveNode(node);
    return fail(status);
  }
  if (scope.context() != nullptr) scope.SetContextOf(*node, scope.context());
  return BuiltNode(node);
}

BuiltNode NodeBuilder::FinishIn(ControlFlowContext* context) {
  const Scope scope = at_.scope.WithoutControlDependencies().InContext(context);
  NodeBuilder there(ScopeAt(scope, at_.where), def_->op());
  *there.def_ = std::move(*def_);
  there.inputs_ = std::move(inputs_);
  there.value_ = value_;
  return there.Finish();
}

}  // namespace millrace
