// SPDX-License-Identifier: Apache-2.0
#include "graph/function_builder.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/hash_table.h"
#include "graph/attr.h"
#include "graph/function_def.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"

namespace millrace {
namespace {

Output AddArgument(const Scope& inner, const std::string& name, DType type, size_t index) {
  return NodeBuilder(inner.WithName(name).WithDevice(""), "_Arg")
      .Attr("T", type)
      .Attr("index", static_cast<int64_t>(index))
      .Finish()
      .output(0);
}

std::string FreeFunctionName(const FunctionLibrary& library, absl::string_view wanted) {
  std::string name(wanted);
  for (int k = 1; library.Find(name) != nullptr || LookUpOp(name) != nullptr; ++k) {
    name = absl::StrCat(wanted, "_", k);
  }
  return name;
}

// One function while it is built.
class Building : public std::enable_shared_from_this<Building> {
 public:
  static std::shared_ptr<Building> Begin(const Scope& outer, const std::vector<DType>& arguments,
                                         const FunctionOptions& options) {
    std::shared_ptr<Building> building(new Building(outer));
    // The program may keep the scope longer.
    building->inner_ = Scope::ForFunction(
        outer, [weak = building->weak_from_this()](const Output& tensor) -> StatusOr<Output> {
          if (const auto self = weak.lock()) return self->Capture(tensor);
          return FailedPrecondition("must be of the same function, which has been built, got '",
                                    tensor.name(), "' of another graph");
        });
    building->AddArguments(arguments, options);
    return building;
  }

  const Scope& scope() const { return inner_; }
  const std::vector<Output>& arguments() const { return arguments_; }
  const std::vector<Output>& captures() const { return captures_; }

  // The tensor as one of this function's graph.
  StatusOr<Output> Own(const Output& tensor) {
    if (tensor.node()->graph() == inner_.graph()) return tensor;
    return Capture(tensor);
  }

  StatusOr<std::shared_ptr<tensorflow::FunctionDef>> Finish(const std::string& name,
                                                            const std::vector<Output>& results) {
    MR_RETURN_IF_ERROR(inner_.status());
    FunctionDefParts parts;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i].valid()) {
        return InvalidArgument("result ", i, " must be a tensor, got an invalid Output");
      }
      MR_ASSIGN_OR_RETURN(const Output own, Own(results[i]));
      parts.results.push_back({own.node(), own.index()});
    }
    for (const std::vector<Output>* const list : {&arguments_, &captured_}) {
      for (const Output& argument : *list) parts.arguments.push_back({argument.node(), 0});
    }
    parts.effects = EffectsOf(*inner_.graph());
    return FunctionDefOf(*inner_.graph(), name, parts);
  }

 private:
  explicit Building(const Scope& outer) : outer_(outer) {}

  void AddArguments(const std::vector<DType>& arguments, const FunctionOptions& options) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      const std::string name =
          i < options.argument_names.size() ? options.argument_names[i] : absl::StrCat("arg", i);
      arguments_.push_back(AddArgument(inner_, name, arguments[i], i));
      if (i < options.shapes.size()) inner_.SetShape(arguments_.back(), options.shapes[i]);
    }
  }

  // What the program around the function has becomes an argument.
  StatusOr<Output> Capture(const Output& tensor) {
    Output from = tensor;
    if (from.node()->graph() != outer_.graph()) {
      MR_ASSIGN_OR_RETURN(from, outer_.Captured(tensor));
    }
    if (const auto it = by_tensor_.find(from); it != by_tensor_.end()) return captured_[it->second];
    if (IsRef(from.dtype())) {
      return InvalidArgument("a function must not use a reference to a variable, got '",
                             from.name(), "'; read it before, or use a resource variable");
    }
    const Output argument = AddArgument(inner_, from.node()->name(), from.dtype(),
                                        arguments_.size() + captured_.size());
    if (!argument.valid()) return inner_.status();
    inner_.refiner()->SetKnown(*argument.node(),
                               outer_.refiner()->Known(*from.node(), from.index()));
    by_tensor_.emplace(from, captures_.size());
    captures_.push_back(from);
    captured_.push_back(argument);
    return argument;
  }

  const Scope outer_;
  Scope inner_;
  std::vector<Output> arguments_;
  std::vector<Output> captures_, captured_;  // there, here
  HashMap<Output, size_t> by_tensor_;
};

}  // namespace

DefinedFunction DefineFunction(ScopeAt at, absl::string_view name,
                               const std::vector<DType>& arguments, FunctionCode code,
                               const FunctionOptions& options) {
  const Scope& scope = at.scope;
  if (!scope.ok()) return {};
  const auto building = Building::Begin(scope, arguments, options);
  const std::vector<Output> results = code(building->scope(), building->arguments());
  const auto define = [&]() -> StatusOr<DefinedFunction> {
    if (!IsLegalNodeName(name, /*internal=*/true)) {
      return InvalidArgument("Function: name must be letters, digits and any of '_./-', got '",
                             name, "'");
    }
    // Functions that the body has defined are the program's.
    const FunctionLibrary& library = building->scope().graph()->library();
    DefinedFunction function;
    function.name = FreeFunctionName(library, name);
    auto def = building->Finish(function.name, results);
    if (!def.ok()) return Prefixed(absl::StrCat("Function '", name, "'"), def.status());
    if (options.no_inline) SetAttr(true, &(*(*def)->mutable_attr())["_noinline"]);
    tensorflow::FunctionDefLibrary more;
    *more.add_function() = **def;
    MR_ASSIGN_OR_RETURN(const auto extended, library.With(more));
    scope.graph()->set_library(extended);
    function.arguments = arguments;
    for (const Output& result : results) function.results.push_back(WithoutRef(result.dtype()));
    function.captures = building->captures();
    function.has_effects = extended->IsStateful(*extended->Find(function.name));
    return function;
  };
  StatusOr<DefinedFunction> function = define();
  if (function.ok()) return *std::move(function);
  scope.UpdateStatus(function.status(), at.where);
  return {};
}

namespace {

BuiltNode BuildCall(const ScopeAt& at, const DefinedFunction& function,
                    absl::Span<const Output> arguments) {
  if (!at.scope.ok()) return BuiltNode();
  if (function.name.empty()) {
    at.scope.UpdateStatus(
        InvalidArgument("Call: the function must be one that DefineFunction made, got none"),
        at.where);
    return BuiltNode();
  }
  if (arguments.size() != function.arguments.size()) {
    at.scope.UpdateStatus(
        InvalidArgument("Call: function '", function.name, "' must have ",
                        function.arguments.size(), " arguments, got ", arguments.size()),
        at.where);
    return BuiltNode();
  }
  std::vector<Output> inputs(arguments.begin(), arguments.end());
  inputs.insert(inputs.end(), function.captures.begin(), function.captures.end());
  tensorflow::NameAttrList called;
  called.set_name(function.name);
  return NodeBuilder(at, function.has_effects ? "StatefulPartitionedCall" : "PartitionedCall")
      .Input(absl::MakeConstSpan(inputs))
      .Attr("Tout", function.results)
      .Attr("f", called)
      .Finish();
}

}  // namespace

std::vector<Output> Call(ScopeAt at, const DefinedFunction& function,
                         absl::Span<const Output> arguments) {
  return BuildCall(at, function, arguments).outputs(0, static_cast<int>(function.results.size()));
}

Operation CallOperation(ScopeAt at, const DefinedFunction& function,
                        absl::Span<const Output> arguments) {
  return BuildCall(at, function, arguments).operation();
}

}  // namespace millrace
