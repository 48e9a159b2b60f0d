// SPDX-License-Identifier: Apache-2.0
#include "layers/variable.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/op_rule.h"
#include "layers/initialized_value.h"
#include "layers/variable_update.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/indices.h"
#include "ops/array/reshape.h"
#include "ops/math/cwise_unary.h"
#include "ops/state/state.h"
#include "proto/attr_value.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/variable.pb.h"

namespace millrace {
namespace {

constexpr char kVariables[] = "variables";
constexpr char kTrainableVariables[] = "trainable_variables";
constexpr char kLocalVariables[] = "local_variables";
constexpr char kGlobalStep[] = "global_step";
// What follows a variable's name in those of its nodes.
constexpr char kRead[] = "/Read/ReadVariableOp", kReferenceRead[] = "/read";
constexpr char kIsInitialized[] = "/IsInitialized/VarIsInitializedOp";
constexpr char kReferenceIsInitialized[] = "/IsVariableInitialized";

tensorflow::SaveSliceInfoDef ToDef(const VariableSlice& slice) {
  tensorflow::SaveSliceInfoDef def;
  def.set_full_name(slice.full_name);
  def.mutable_full_shape()->Assign(slice.full_shape.begin(), slice.full_shape.end());
  def.mutable_var_offset()->Assign(slice.var_offset.begin(), slice.var_offset.end());
  def.mutable_var_shape()->Assign(slice.var_shape.begin(), slice.var_shape.end());
  return def;
}

VariableSlice FromDef(const tensorflow::SaveSliceInfoDef& def) {
  return {.full_name = def.full_name(),
          .full_shape = {def.full_shape().begin(), def.full_shape().end()},
          .var_offset = {def.var_offset().begin(), def.var_offset().end()},
          .var_shape = {def.var_shape().begin(), def.var_shape().end()}};
}

// What VariableDef keeps, so that VariablesOf can give the variable back.
tensorflow::VariableDef ToDef(const Variable& variable, const std::string& initial_value,
                              bool trainable) {
  tensorflow::VariableDef def;
  def.set_variable_name(variable.handle.name());
  def.set_initial_value_name(initial_value);
  def.set_initializer_name(variable.initializer.name());
  def.set_snapshot_name(variable.value.name());
  def.set_is_resource(!variable.is_reference());
  def.set_trainable(trainable);
  if (!variable.slice.full_name.empty()) {
    *def.mutable_save_slice_info_def() = ToDef(variable.slice);
  }
  return def;
}

Output FindOutput(const Scope& scope, const std::string& tensor_name) {
  const StatusOr<TensorName> parsed = ParseTensorName(tensor_name);
  if (!parsed.ok()) return Output();
  Node* node = scope.graph()->FindNode(parsed->node);
  if (node == nullptr || parsed->index < 0 || parsed->index >= node->num_outputs()) return Output();
  return Output(node, parsed->index);
}

Variable FromDef(const Scope& scope, const tensorflow::VariableDef& def) {
  Variable variable;
  variable.handle = FindOutput(scope, def.variable_name());
  variable.value = FindOutput(scope, def.snapshot_name());
  if (Node* node = scope.graph()->FindNode(def.initializer_name())) {
    variable.initializer = Operation(node);
  }
  if (!variable.handle.valid() || !variable.value.valid()) return Variable();
  variable.name = variable.handle.node()->name();
  variable.dtype = variable.value.dtype();
  variable.shape = scope.shape(variable.value);
  variable.slice = FromDef(def.save_slice_info_def());
  const char* const asks = variable.is_reference() ? kReferenceIsInitialized : kIsInitialized;
  if (Node* node = scope.graph()->FindNode(variable.name + asks)) {
    variable.is_initialized = Output(node, 0);
  }
  return variable;
}

void EnterIntoCollections(const Scope& scope, const Variable& variable,
                          const std::string& initial_value, const VariableAttrs& attrs) {
  const std::string def = ToDef(variable, initial_value, attrs.trainable).SerializeAsString();
  scope.AddToBytesCollection(attrs.local ? kLocalVariables : kVariables, def);
  if (attrs.trainable && !attrs.local) scope.AddToBytesCollection(kTrainableVariables, def);
}

Output ReadOf(const ScopeAt& at, const Variable& variable) {
  if (variable.is_reference()) {
    return Identity({at.scope.WithName(variable.name + kReferenceRead), at.where}, variable.handle);
  }
  return ReadVariableOp({at.scope.WithName(variable.name + kRead), at.where}, variable.handle,
                        variable.dtype);
}
Output IsInitializedOf(const ScopeAt& at, const Variable& variable) {
  if (variable.is_reference()) {
    return IsVariableInitialized(
        {at.scope.WithName(variable.name + kReferenceIsInitialized), at.where}, variable.handle);
  }
  return VarIsInitializedOp({at.scope.WithName(variable.name + kIsInitialized), at.where},
                            variable.handle);
}

// The initial value of a variable, in the scope `beside`, which is colocated with it.
using InitialValue = absl::FunctionRef<Output(const Scope& beside, const std::string& name)>;

// The handle of a variable that every task has for itself: it goes where plain ops of the scope go,
// whatever a device function does with variables (ReplicaDeviceSetter takes them to parameter
// servers). The function is not asked for a place for it: the places of others stay as they are.
Output LocalHandle(const ScopeAt& at, const std::string& full_name, DType dtype, const Shape& shape,
                   const Output& plain_op, const VariableAttrs& attrs) {
  return NodeBuilder({at.scope.WithName(full_name + "/"), at.where}, "VarHandleOp")
      .Attrs("container", attrs.container, "shared_name", full_name, "dtype", dtype, "shape",
             PartialShape(shape))
      .Device(plain_op.node()->requested_device())
      .Finish();
}

Variable Make(const ScopeAt& at, const std::string& name, DType dtype, const Shape& shape,
              InitialValue make_initial_value, const VariableAttrs& attrs) {
  const Scope& scope = at.scope;
  // The variable belongs to the whole model: it must not wait for what the caller builds next to
  // it, nor stand in the branch or loop in which it is asked for.
  const Scope plain = scope.OutsideControlFlow().WithoutControlDependencies();
  Variable variable;
  const std::source_location where = at.where;
  Output initial_value;
  if (attrs.local) {
    if (!plain.ok()) return Variable();
    if (!attrs.use_resource) {
      scope.UpdateStatus(InvalidArgument("Variable '", name,
                                         "': a local variable must use a resource, got "
                                         "use_resource = false"),
                         where);
      return Variable();
    }
    const std::string full_name = plain.UniqueName(name);
    const Scope beside = plain.WithRootPrefix();
    initial_value = make_initial_value(beside, full_name);
    if (!initial_value.valid()) return Variable();
    const Output here =
        Identity({beside.WithName(full_name + "/initial_value"), where}, initial_value);
    if (!here.valid()) return Variable();
    variable.handle = LocalHandle({plain, where}, full_name, dtype, shape, here, attrs);
    initial_value = here;
  } else if (!attrs.use_resource) {
    variable.handle = VariableV2({plain.WithName(name), where}, shape, dtype,
                                 {.container = attrs.container, .shared_name = ""});
  } else {
    variable.handle = VarHandleOp({plain.WithName(name), where}, dtype, shape,
                                  {.container = attrs.container, .shared_name = ""});
  }
  if (!variable.handle.valid()) return Variable();
  variable.name = variable.handle.node()->name();
  if (attrs.use_resource) {
    variable.handle.node()->EditAttr(
        "shared_name", [&](tensorflow::AttrValue* attr) { attr->set_s(variable.name); });
  }
  variable.dtype = dtype;
  variable.shape = shape;
  variable.slice = attrs.slice;

  // The full name: the one asked for may itself be a path ("w/Adam").
  const Scope here = plain.WithRootPrefix().ColocatedWith(variable.handle.op());
  const std::string& base = variable.name;
  if (!attrs.local) initial_value = make_initial_value(here, base);
  if (!initial_value.valid()) return Variable();
  // Local variables are initialised after the others have their values.
  if (!attrs.local) initial_value = FromInitialValues({here, where}, base, initial_value);
  if (!initial_value.valid()) return Variable();
  variable.is_initialized = IsInitializedOf({here, where}, variable);
  variable.initializer =
      AssignVariable({here.WithName(base + "/Assign"), where}, variable, initial_value);
  variable.value = ReadOf({here, where}, variable);
  if (!variable.value.valid()) return Variable();
  EnterIntoCollections(scope, variable, initial_value.name(), attrs);
  return variable;
}

// What an initialiser makes for the whole or a part, in "<name>/Initializer".
Variable MakeInitialized(const ScopeAt& at, const std::string& name, const InitialShape& shape,
                         DType dtype, const Initializer& initializer, const VariableAttrs& attrs) {
  const auto initial_value = [&](const Scope& beside, const std::string& base) -> Output {
    if (!initializer) {
      at.scope.UpdateStatus(
          InvalidArgument("Variable '", base, "': the initializer must be a function, got none"),
          at.where);
      return Output();
    }
    const Scope scope = beside.WithSubScope(base + "/Initializer").BuiltWhereCalled();
    const Output value = initializer(ScopeAt(scope, at.where), shape, dtype);
    if (!value.valid()) {
      at.scope.UpdateStatus(
          InvalidArgument("Variable '", base,
                          "': the initializer must give a tensor, got an invalid Output"),
          at.where);
      return Output();
    }
    if (value.dtype() == dtype && scope.shape(value).IsCompatibleWith(shape.shape)) return value;
    at.scope.UpdateStatus(
        InvalidArgument("Variable '", base, "': the initializer must give ", dtype, shape.shape,
                        ", got ", value.dtype(), scope.shape(value), " from '", value.name(), "'"),
        at.where);
    return Output();
  };
  return Make(at, name, dtype, shape.shape, initial_value, attrs);
}

// Which dimension is cut; 0 where none is. What TensorFlow refuses as well has its text.
StatusOr<int> DimensionToCut(const Shape& shape, const std::vector<int64_t>& partitions) {
  if (shape.is_scalar()) {
    return InvalidArgument("A partitioned Variable must have rank at least 1, shape: ", shape);
  }
  const std::string list = absl::StrCat("[", absl::StrJoin(partitions, ", "), "]");
  if (partitions.size() != static_cast<size_t>(shape.rank())) {
    return InvalidArgument(
        "Partitioner returned a partition list that does not match the Variable's rank: ", list,
        " vs. ", shape);
  }
  std::vector<int> cut;
  for (int i = 0; i < shape.rank(); ++i) {
    const int64_t num_parts = partitions[static_cast<size_t>(i)];
    if (num_parts < 1) {
      return InvalidArgument("Partitioner returned zero partitions for some axes: ", list);
    }
    if (num_parts > 1) cut.push_back(i);
  }
  if (cut.size() > 1) {
    return InvalidArgument("Can only slice a variable along one dimension: shape: ", shape,
                           ", partitioning: ", list);
  }
  if (cut.empty()) return 0;
  const int64_t num_parts = partitions[static_cast<size_t>(cut[0])];
  if (num_parts <= shape.dim(cut[0])) return cut[0];
  return InvalidArgument("dimension ", cut[0], " must be cut into at most ", shape.dim(cut[0]),
                         " parts, as many as it has elements, got ", num_parts, " (shape ", shape,
                         ", partitioning ", list, ")");
}

Operation GroupInitializers(const ScopeAt& at, const std::string& collection, const char* name) {
  std::vector<Operation> initializers;
  for (const Variable& variable : VariablesOf(at.scope, collection)) {
    if (variable.initializer.valid()) initializers.push_back(variable.initializer);
  }
  return Group({at.scope.WithoutControlDependencies().WithName(name), at.where}, initializers);
}

}  // namespace

Variable AdoptVariable(ScopeAt at, Output handle, const VariableAttrs& attrs) {
  if (!at.scope.ok() || !handle.valid()) return Variable();
  const Node& node = *handle.node();
  Variable variable;
  variable.name = node.name();
  variable.handle = handle;
  const Status read =
      node.traits().makes_variable && node.output_type(0) == DT_RESOURCE
          ? ReadAttrs(node.attrs(), "dtype", &variable.dtype, "shape", &variable.shape)
          : InvalidArgument("its node must be a VarHandleOp, got ", node.op());
  if (!read.ok()) {
    at.scope.UpdateStatus(Prefixed(absl::StrCat("Variable '", node.name(), "'"), read), at.where);
    return Variable();
  }
  variable.slice = attrs.slice;
  const Scope here =
      at.scope.WithoutControlDependencies().WithRootPrefix().ColocatedWith(handle.op());
  variable.is_initialized = IsInitializedOf({here, at.where}, variable);
  variable.value = ReadOf({here, at.where}, variable);
  if (!variable.value.valid()) return Variable();
  EnterIntoCollections(at.scope, variable, "", attrs);
  return variable;
}

Variable MakeVariable(ScopeAt at, Output initial_value, const VariableAttrs& attrs) {
  if (!initial_value.valid()) return Variable();
  const StatusOr<Shape> shape = at.scope.shape(initial_value).ToShape();
  if (!shape.ok()) {
    at.scope.UpdateStatus(
        absl::InvalidArgumentError(absl::StrCat(
            "Variable: the initial value '", initial_value.name(),
            "' must have a fully defined shape, got ", at.scope.shape(initial_value).ToString(),
            "; SetShape says what the graph does not know")),
        at.where);
    return Variable();
  }
  return Make(
      at, at.scope.RequestedName("Variable"), initial_value.dtype(), *shape,
      [&](const Scope&, const std::string&) { return initial_value; }, attrs);
}

Variable MakeVariable(ScopeAt at, const Shape& shape, DType dtype, const Initializer& initializer,
                      const VariableAttrs& attrs) {
  return MakeInitialized(at, at.scope.RequestedName("Variable"), shape, dtype, initializer, attrs);
}

PartitionedVariable MakePartitionedVariable(ScopeAt at, const Shape& full_shape, DType dtype,
                                            const std::vector<int64_t>& partitions,
                                            const Initializer& initializer,
                                            const VariableAttrs& attrs) {
  PartitionedVariable result;
  result.full_shape = full_shape;
  const StatusOr<int> cut = DimensionToCut(full_shape, partitions);
  if (!cut.ok()) {
    at.scope.UpdateStatus(Prefixed(absl::StrCat("Variable '", at.scope.prefix(),
                                                at.scope.RequestedName("Variable"), "'"),
                                   cut.status()),
                          at.where);
    return result;
  }
  const auto along = static_cast<size_t>(*cut);
  const Scope parts = at.scope.CompositeScope("Variable");
  result.name = parts.prefix().substr(0, parts.prefix().size() - 1);
  const int64_t size = full_shape.dim(*cut), num_parts = partitions[along];
  VariableSlice slice = {.full_name = result.name,
                         .full_shape = {full_shape.dims().begin(), full_shape.dims().end()},
                         .var_offset = std::vector<int64_t>(partitions.size(), 0),
                         .var_shape = {full_shape.dims().begin(), full_shape.dims().end()}};
  for (int64_t i = 0; i < num_parts; ++i) {
    slice.var_shape[along] = size / num_parts + (i < size % num_parts ? 1 : 0);
    const StatusOr<Shape> part_shape = Shape::Make(slice.var_shape);
    if (!part_shape.ok()) {
      at.scope.UpdateStatus(part_shape.status(), at.where);
      return result;
    }
    VariableAttrs part_attrs = attrs;
    part_attrs.slice = slice;
    result.parts.push_back(MakeInitialized(ScopeAt(parts, at.where), absl::StrCat("part_", i),
                                           {*part_shape, full_shape, slice.var_offset}, dtype,
                                           initializer, part_attrs));
    if (!result.parts.back().valid()) return result;
    slice.var_offset[along] += slice.var_shape[along];
  }
  return result;
}

PartitionedVariable MakePartitionedVariable(ScopeAt at, const Shape& full_shape, DType dtype,
                                            int num_parts, const Initializer& initializer,
                                            const VariableAttrs& attrs) {
  std::vector<int64_t> partitions(static_cast<size_t>(full_shape.rank()), 1);
  if (!partitions.empty()) partitions[0] = num_parts;
  return MakePartitionedVariable(at, full_shape, dtype, partitions, initializer, attrs);
}

int CutDimension(const std::vector<Variable>& parts) {
  for (const Variable& part : parts) {
    const std::vector<int64_t>&whole = part.slice.full_shape, &own = part.slice.var_shape;
    if (own.size() != whole.size()) continue;
    const auto [cut, unused] = std::mismatch(own.begin(), own.end(), whole.begin());
    if (cut != own.end()) return static_cast<int>(cut - own.begin());
  }
  return 0;
}

std::vector<Variable> VariablesOf(const Scope& scope, const std::string& collection) {
  std::vector<Variable> variables;
  const auto found = scope.collections()->find(collection);
  if (found == scope.collections()->end()) return variables;
  for (const std::string& bytes : found->second.bytes_list().value()) {
    tensorflow::VariableDef def;
    if (!def.ParseFromString(bytes)) continue;
    Variable variable = FromDef(scope, def);
    if (variable.valid()) variables.push_back(std::move(variable));
  }
  return variables;
}

void AddToCollection(const Scope& scope, const std::vector<Variable>& variables,
                     const std::string& collection) {
  std::map<std::string, std::string> defs;  // of all variables, by the handles' names
  for (const char* const made_in : {kVariables, kLocalVariables}) {
    const auto found = scope.collections()->find(made_in);
    if (found == scope.collections()->end()) continue;
    for (const std::string& bytes : found->second.bytes_list().value()) {
      tensorflow::VariableDef def;
      if (def.ParseFromString(bytes)) defs.emplace(def.variable_name(), bytes);
    }
  }
  for (const Variable& variable : variables) {
    const auto def = defs.find(variable.handle.name());
    if (def != defs.end()) scope.AddToBytesCollection(collection, def->second);
  }
}

Operation GlobalVariablesInitializer(ScopeAt at) {
  return GroupInitializers(at, kVariables, "init");
}

Operation LocalVariablesInitializer(ScopeAt at) {
  return GroupInitializers(at, kLocalVariables, "init_local");
}

Output IsInitialized(ScopeAt at, const Variable& variable) {
  if (!variable.valid() || variable.is_initialized.valid()) return variable.is_initialized;
  const Scope beside =
      at.scope.WithoutControlDependencies().WithRootPrefix().ColocatedWith(variable.handle.op());
  return IsInitializedOf({beside, at.where}, variable);
}

Output ReportUninitializedVariables(ScopeAt at, const std::vector<Variable>& variables) {
  const Scope scope =
      at.scope.WithoutControlDependencies().WithSubScope("report_uninitialized_variables");
  std::vector<Output> flags;
  std::vector<std::string> names;
  for (const Variable& variable : variables) {
    flags.push_back(IsInitialized({scope, at.where}, variable));
    names.push_back(variable.name);
  }
  if (flags.empty()) {
    return ConstVector<std::string>(ScopeAt(scope, at.where), {});
  }
  const ScopeAt here(scope, at.where);
  const Output initialized = Pack(here, flags);
  const Output missing = LogicalNot(here, initialized);
  const Output flat = Reshape(here, Where(here, missing), Const<int32_t>(here, {-1}));
  const Output all = ConstVector<std::string>(here, names);
  return GatherV2(here, all, flat, Const(here, int32_t{0}));
}

Variable GlobalStep(ScopeAt at) {
  const auto found = at.scope.collections()->find(kGlobalStep);
  if (found != at.scope.collections()->end() && found->second.bytes_list().value_size() > 0) {
    tensorflow::VariableDef def;
    if (def.ParseFromString(found->second.bytes_list().value(0))) {
      Variable variable = FromDef(at.scope, def);
      if (variable.valid()) return variable;
    }
  }
  const Scope root = at.scope.WithRootPrefix().WithoutControlDependencies();
  const Output zero = Const({root.WithName("global_step/Initializer/zeros"), at.where}, int64_t{0});
  const Variable step =
      MakeVariable({root.WithName(kGlobalStep), at.where}, zero, {.trainable = false});
  if (step.valid()) {
    at.scope.AddToBytesCollection(
        kGlobalStep, ToDef(step, zero.name(), /*trainable=*/false).SerializeAsString());
  }
  return step;
}

}  // namespace millrace
