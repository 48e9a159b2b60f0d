// SPDX-License-Identifier: Apache-2.0
#include "graph/function_gradient.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "core/deterministic_bytes.h"
#include "core/hash64.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/copy.h"
#include "graph/function_body.h"
#include "graph/function_cut.h"
#include "graph/function_def.h"
#include "graph/function_library.h"
#include "graph/node_body.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

using function_cut::ArgumentGradient;
using function_cut::CallInstead;
using function_cut::CallNamed;
using function_cut::CopyBody;
using function_cut::Cut;
using function_cut::Define;
using function_cut::DenseOrZeros;
using function_cut::Differentiate;
using function_cut::Differentiated;
using function_cut::ValuesType;
using tensorflow::NameAttrList;

NameAttrList CallOf(const Node& node) {
  NameAttrList call;
  call.set_name(node.op());
  for (const auto& [name, value] : node.def().attr()) {
    if (name[0] != '_') (*call.mutable_attr())[name] = value;
  }
  return call;
}

StatusOr<NameAttrList> CalledBy(const Node& node) {
  if (node.body()->function() != nullptr) return CallOf(node);
  return GetAttr<NameAttrList>(node, "f");
}

// dx = g(x, dy), by a GradientDef.
Status CustomGradient(GradientContext* c, const std::string& gradient) {
  const Scope& scope = c->scope();
  NameAttrList call;
  call.set_name(gradient);
  MR_ASSIGN_OR_RETURN(const auto body, scope.graph()->library().Body(call));
  std::vector<Output> inputs;
  for (int i = 0; i < c->num_inputs(); ++i) inputs.push_back(c->input(i));
  for (int i = 0; i < c->num_outputs(); ++i) {
    // Also for results without gradient: g has an argument for each.
    inputs.push_back(IsTrainable(WithoutRef(c->output(i).dtype()))
                         ? c->dense_grad(i)
                         : NodeBuilder(scope, "ZerosLike").Input(c->output(i)).Finish().output(0));
  }
  if (static_cast<int>(body->result_types.size()) != c->num_inputs()) {
    return InvalidArgument("Function '", gradient, "': must have ", c->num_inputs(),
                           " results, one an argument of the function that it is the gradient of, "
                           "got ",
                           body->result_types.size());
  }
  const BuiltNode node = CallNamed(scope, gradient, inputs, body->result_types);
  MR_RETURN_IF_ERROR(scope.status());
  for (int i = 0; i < c->num_inputs(); ++i) {
    const DType type = WithoutRef(c->input(i).dtype());
    if (IsTrainable(type) || type == DT_RESOURCE) c->set_input_grad(i, node.output(i));
  }
  return absl::OkStatus();
}

Status GradientByCut(GradientContext* c, const NameAttrList& call) {
  const Scope& scope = c->scope();
  if (scope.function_depth() >= kMaxDifferentiatedCalls) {
    return InvalidArgument("calls must be at most ", kMaxDifferentiatedCalls,
                           " deep to be differentiated, got a further one");
  }
  Node* const node = const_cast<Node*>(&c->node());
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const FunctionBody> body,
                      scope.graph()->library().Body(call));
  if (static_cast<int>(body->arguments.size()) != c->num_inputs() ||
      static_cast<int>(body->results.size()) != c->num_outputs()) {
    return InvalidArgument("must have ", c->num_inputs(), " arguments and ", c->num_outputs(),
                           " results as the call, got ", body->arguments.size(), " and ",
                           body->results.size());
  }
  std::vector<KnownTensor> known;
  for (int i = 0; i < c->num_inputs(); ++i) {
    const Output input = c->input(i);
    KnownTensor argument;
    argument.shape = scope.refiner()->OutputShape(*input.node(), input.index());
    argument.handle = scope.refiner()->OutputHandle(*input.node(), input.index());
    known.push_back(std::move(argument));
  }
  Differentiated d(scope, std::move(body));
  MR_RETURN_IF_ERROR(CopyBody(known, &d));
  std::vector<bool> has_dy;
  for (int i = 0; i < c->num_outputs(); ++i) has_dy.push_back(c->has_grad(i));
  MR_RETURN_IF_ERROR(Differentiate(has_dy, c->source(), &d));
  // Functions that calls in the body have got are the program's.
  scope.graph()->set_library(d.scope.graph()->shared_library());

  Cut cut(&d);
  MR_RETURN_IF_ERROR(cut.Run());
  const std::vector<DType> inside = cut.inside_types(), outputs = cut.result_types();
  if (outputs.empty()) return absl::OkStatus();

  MR_ASSIGN_OR_RETURN(
      const std::string backward_name,
      Define(scope, absl::StrCat(call.name(), "_grad"), *d.scope.graph(), cut.parts()));
  const int first_inside = c->num_outputs();
  if (!inside.empty()) {
    MR_ASSIGN_OR_RETURN(
        const std::string forward_name,
        Define(scope, absl::StrCat(call.name(), "_forward"), *d.scope.graph(), cut.ForwardParts()));
    MR_RETURN_IF_ERROR(CallInstead(scope, node, forward_name, inside));
  }

  std::vector<Output> inputs;
  for (const size_t i : cut.from_call()) inputs.push_back(c->input(static_cast<int>(i)));
  for (size_t i = 0; i < inside.size(); ++i) {
    inputs.push_back(Output(node, first_inside + static_cast<int>(i)));
  }
  for (int i = 0; i < first_inside; ++i) {
    if (c->has_grad(i)) inputs.push_back(c->dense_grad(i));
  }
  MR_RETURN_IF_ERROR(scope.status());
  const BuiltNode gradient = CallNamed(scope, backward_name, inputs, outputs,
                                       cut.waits_for_forward() ? Operation(node) : Operation());
  MR_RETURN_IF_ERROR(scope.status());
  for (size_t i = 0; i < cut.places().size(); ++i) {
    const ArgumentGradient& place = cut.places()[i];
    const int at = static_cast<int>(place.first), input = static_cast<int>(i);
    switch (place.kind) {
      case ArgumentGradient::Kind::kNone:
        break;
      case ArgumentGradient::Kind::kDense:
        c->set_input_grad(input, gradient.output(at));
        break;
      case ArgumentGradient::Kind::kSlices:
        c->set_input_grad(input,
                          IndexedSlices{gradient.output(at), gradient.output(at + 1), Output()});
        break;
      case ArgumentGradient::Kind::kSlicesWithShape:
        c->set_input_grad(input, IndexedSlices{gradient.output(at), gradient.output(at + 1),
                                               gradient.output(at + 2)});
        break;
    }
  }
  return absl::OkStatus();
}

// --- Branches ------------------------------------------------------------------------------------

StatusOr<std::vector<NameAttrList>> BranchesOf(const Node& node) {
  if (HasAttr(node, "branches")) return GetAttr<std::vector<NameAttrList>>(node, "branches");
  std::vector<NameAttrList> branches;
  for (const char* attr : {"then_branch", "else_branch"}) {
    MR_ASSIGN_OR_RETURN(branches.emplace_back(), GetAttr<NameAttrList>(node, attr));
  }
  return branches;
}

void SetBranches(const std::vector<std::string>& functions, tensorflow::NodeDef* def) {
  auto& attrs = *def->mutable_attr();
  if (attrs.contains("branches")) {
    auto* const list = attrs["branches"].mutable_list();
    list->clear_func();
    for (const std::string& function : functions) list->add_func()->set_name(function);
    return;
  }
  for (size_t i = 0; i < functions.size(); ++i) {
    auto* const function = attrs[i == 0 ? "then_branch" : "else_branch"].mutable_func();
    function->Clear();
    function->set_name(functions[i]);
  }
}

// A branch whose function is called with the inputs behind the first one, differentiated.
struct Branch {
  Branch(const Scope& outer, std::shared_ptr<const FunctionBody> body)
      : d(outer, std::move(body)), cut(&d) {}
  Differentiated d;
  Cut cut;
};

class BranchesGradient {
 public:
  BranchesGradient(GradientContext* context, std::vector<NameAttrList> calls)
      : c_(context), scope_(context->scope()), calls_(std::move(calls)) {}

  Status Run() {
    if (scope_.function_depth() >= kMaxDifferentiatedCalls) {
      return InvalidArgument("calls must be at most ", kMaxDifferentiatedCalls,
                             " deep to be differentiated, got a further one");
    }
    for (const NameAttrList& call : calls_) {
      MR_RETURN_IF_ERROR(Prefixed(absl::StrCat("Function '", call.name(), "'"), Add(call)));
    }
    FindResults();
    if (differentiated_.empty()) return absl::OkStatus();
    for (const auto& branch : branches_) MR_RETURN_IF_ERROR(CutBranch(branch.get()));
    std::vector<std::string> forward, backward;
    for (size_t b = 0; b < branches_.size(); ++b) {
      MR_ASSIGN_OR_RETURN(backward.emplace_back(), DefineBackward(b));
      MR_ASSIGN_OR_RETURN(forward.emplace_back(), DefineForward(b));
    }
    MR_RETURN_IF_ERROR(CallForward(forward));
    return CallBackward(backward);
  }

 private:
  Status Add(const NameAttrList& call) {
    MR_ASSIGN_OR_RETURN(std::shared_ptr<const FunctionBody> body,
                        scope_.graph()->library().Body(call));
    if (static_cast<int>(body->arguments.size()) != c_->num_inputs() - 1 ||
        static_cast<int>(body->results.size()) != c_->num_outputs()) {
      return InvalidArgument("must have ", c_->num_inputs() - 1, " arguments and ",
                             c_->num_outputs(), " results as the node, got ",
                             body->arguments.size(), " and ", body->results.size());
    }
    branches_.push_back(std::make_unique<Branch>(scope_, std::move(body)));
    Differentiated& d = branches_.back()->d;
    std::vector<KnownTensor> known;
    for (int i = 1; i < c_->num_inputs(); ++i) {
      const Output input = c_->input(i);
      known.push_back({scope_.refiner()->OutputShape(*input.node(), input.index()),
                       scope_.refiner()->OutputHandle(*input.node(), input.index()), nullptr});
    }
    MR_RETURN_IF_ERROR(CopyBody(known, &d));
    std::vector<bool> has_dy;
    for (int i = 0; i < c_->num_outputs(); ++i) has_dy.push_back(c_->has_grad(i));
    MR_RETURN_IF_ERROR(Differentiate(has_dy, c_->source(), &d));
    scope_.graph()->set_library(d.scope.graph()->shared_library());
    return absl::OkStatus();
  }

  // The arguments that some branch has a gradient of.
  void FindResults() {
    for (size_t i = 0; i + 1 < static_cast<size_t>(c_->num_inputs()); ++i) {
      DType type = DT_INVALID;
      for (const auto& branch : branches_) {
        if (type == DT_INVALID) type = ValuesType(branch->d.gradients[i]);
      }
      if (type == DT_INVALID) continue;
      differentiated_.push_back(i);
      types_.push_back(type);
    }
  }

  Status CutBranch(Branch* branch) {
    std::vector<Gradient> dense(branch->d.gradients.size());
    for (size_t k = 0; k < differentiated_.size(); ++k) {
      const size_t i = differentiated_[k];
      dense[i] = DenseOrZeros(&branch->d, i, types_[k]);
    }
    MR_RETURN_IF_ERROR(branch->d.scope.status());
    branch->d.gradients = std::move(dense);
    MR_RETURN_IF_ERROR(branch->cut.Run());
    const std::vector<DType> types = branch->cut.inside_types();
    inside_.insert(inside_.end(), types.begin(), types.end());
    return absl::OkStatus();
  }

  // What is inside of branch `b`, and in the places of the others what `other` makes.
  Status AppendInside(size_t b, std::vector<OutputRef>* to,
                      absl::FunctionRef<Output(const Scope&, DType, size_t)> other) {
    size_t place = 0;
    for (size_t k = 0; k < branches_.size(); ++k) {
      for (const OutputRef& tensor : branches_[k]->cut.inside()) {
        if (k == b) {
          to->push_back(tensor);
        } else {
          const Output made = other(branches_[b]->d.scope, inside_[place], place);
          if (!made.valid()) return branches_[b]->d.scope.status();
          to->push_back({made.node(), made.index()});
        }
        ++place;
      }
    }
    return absl::OkStatus();
  }

  // (x, inside of all, dy) -> dx.
  StatusOr<std::string> DefineBackward(size_t b) {
    Branch& branch = *branches_[b];
    FunctionDefParts parts = branch.cut.parts();
    parts.arguments.clear();
    for (const Output& argument : branch.d.arguments)
      parts.arguments.push_back({argument.node(), 0});
    MR_RETURN_IF_ERROR(
        AppendInside(b, &parts.arguments, [](const Scope& scope, DType type, size_t place) {
          return NodeBuilder(scope.WithName(absl::StrCat("other_", place)), "_Arg")
              .Attr("T", type)
              .Attr("index", static_cast<int64_t>(place))
              .Finish()
              .output(0);
        }));
    for (const Output& dy : branch.d.dys) parts.arguments.push_back({dy.node(), 0});
    return Define(scope_, absl::StrCat(calls_[b].name(), "_grad"), *branch.d.scope.graph(), parts);
  }

  // x -> (y, inside of all).
  StatusOr<std::string> DefineForward(size_t b) {
    Branch& branch = *branches_[b];
    if (inside_.empty()) return std::string();
    FunctionDefParts parts;
    for (const Output& argument : branch.d.arguments)
      parts.arguments.push_back({argument.node(), 0});
    for (const Output& result : branch.d.results)
      parts.results.push_back({result.node(), result.index()});
    HashSet<const Node*> nodes = branch.d.forward;
    MR_RETURN_IF_ERROR(
        AppendInside(b, &parts.results, [&nodes](const Scope& scope, DType type, size_t) {
          const Output nothing = NodeBuilder(scope, "FakeParam")
                                     .Attr("dtype", type)
                                     .Attr("shape", PartialShape())
                                     .Finish()
                                     .output(0);
          if (nothing.valid()) nodes.insert(nothing.node());
          return nothing;
        }));
    parts.effects = branch.d.effects;
    parts.nodes = &nodes;
    return Define(scope_, absl::StrCat(calls_[b].name(), "_forward"), *branch.d.scope.graph(),
                  parts);
  }

  Status CallForward(const std::vector<std::string>& functions) {
    first_inside_ = c_->num_outputs();
    if (inside_.empty()) return absl::OkStatus();
    Node* const node = const_cast<Node*>(&c_->node());
    const auto def = NewMessage<tensorflow::NodeDef>();
    *def = node->def();
    def->set_name(node->name());
    SetBranches(functions, def.get());
    std::vector<DType> results(node->output_types().begin(), node->output_types().end());
    results.insert(results.end(), inside_.begin(), inside_.end());
    SetAttr(results, &(*def->mutable_attr())["Tout"]);
    (*def->mutable_attr())["output_shapes"].mutable_list()->Clear();
    def->mutable_attr()->erase("_output_shapes");
    MR_ASSIGN_OR_RETURN(
        std::shared_ptr<const NodeBody> body,
        node->graph()->bodies()->Make(*def, nullptr,
                                      [](const tensorflow::NodeDef&) { return absl::OkStatus(); }));
    MR_RETURN_IF_ERROR(node->graph()->ReplaceBody(node, std::move(body)));
    return scope_.refiner()->AddNode(*node);
  }

  Status CallBackward(const std::vector<std::string>& functions) {
    Node* const node = const_cast<Node*>(&c_->node());
    std::vector<Output> inputs;
    for (int i = 1; i < c_->num_inputs(); ++i) inputs.push_back(c_->input(i));
    for (size_t i = 0; i < inside_.size(); ++i) {
      inputs.push_back(Output(node, first_inside_ + static_cast<int>(i)));
    }
    for (int i = 0; i < first_inside_; ++i) {
      if (c_->has_grad(i)) inputs.push_back(c_->dense_grad(i));
    }
    MR_RETURN_IF_ERROR(scope_.status());
    NodeBuilder builder(scope_, node->op());
    builder.Input(c_->input(0)).Input(absl::MakeConstSpan(inputs)).Attr("Tout", types_);
    if (HasAttr(*node, "branches")) {
      std::vector<FunctionName> names;
      for (const std::string& function : functions) names.push_back({function});
      builder.Attr("branches", names);
    } else {
      builder.Attr("then_branch", FunctionName{functions[0]})
          .Attr("else_branch", FunctionName{functions[1]});
    }
    for (const auto& branch : branches_) {
      if (branch->cut.waits_for_forward()) builder.ControlInput(Operation(node));
    }
    const BuiltNode gradient = builder.Finish();
    MR_RETURN_IF_ERROR(scope_.status());
    for (size_t k = 0; k < differentiated_.size(); ++k) {
      c_->set_input_grad(static_cast<int>(differentiated_[k]) + 1,
                         gradient.output(static_cast<int>(k)));
    }
    return absl::OkStatus();
  }

  GradientContext* const c_;
  const Scope& scope_;
  const std::vector<NameAttrList> calls_;
  std::vector<std::unique_ptr<Branch>> branches_;
  std::vector<size_t> differentiated_;  // arguments, without the condition
  std::vector<DType> types_;            // of their gradients
  std::vector<DType> inside_;           // of all branches, one after the other
  int first_inside_ = 0;
};

}  // namespace

Status GradientOfBranches(GradientContext* context) {
  MR_ASSIGN_OR_RETURN(std::vector<NameAttrList> branches, BranchesOf(context->node()));
  return BranchesGradient(context, std::move(branches)).Run();
}

Status GradientOfCall(GradientContext* context) {
  MR_ASSIGN_OR_RETURN(NameAttrList call, CalledBy(context->node()));
  const Scope& scope = context->scope();
  if (context->node().op() == "SymbolicGradient") {
    MR_ASSIGN_OR_RETURN(const std::string gradient, DefineSymbolicGradient(call, scope.graph()));
    call.Clear();
    call.set_name(gradient);
  }
  const std::string custom(scope.graph()->library().GradientOf(call.name()));
  const Status status =
      custom.empty() ? GradientByCut(context, call) : CustomGradient(context, custom);
  return Prefixed(absl::StrCat("Function '", call.name(), "'"), status);
}

StatusOr<std::string> DefineSymbolicGradient(const NameAttrList& call, Graph* graph) {
  const std::string name =
      call.attr().empty()
          ? absl::StrCat(call.name(), "_symbolic_grad")
          : absl::StrCat(call.name(), "_symbolic_grad_",
                         absl::Hex(Hash64(DeterministicBytes(call)), absl::kZeroPad16));
  if (graph->library().Find(name) != nullptr) return name;
  if (const absl::string_view custom = graph->library().GradientOf(call.name()); !custom.empty()) {
    return std::string(custom);
  }
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const FunctionBody> body, graph->library().Body(call));
  Scope outer;
  outer.graph()->set_library(graph->shared_library());
  Differentiated d(outer, std::move(body));
  MR_RETURN_IF_ERROR(CopyBody({}, &d));
  std::vector<bool> has_dy;
  for (const Output& result : d.results) {
    has_dy.push_back(IsTrainable(WithoutRef(result.dtype())));
  }
  MR_RETURN_IF_ERROR(Differentiate(has_dy, "gradients", &d));
  FunctionDefParts parts;
  for (const Output& argument : d.arguments) parts.arguments.push_back({argument.node(), 0});
  size_t next_dy = 0;
  for (size_t i = 0; i < d.results.size(); ++i) {
    Output dy;
    if (has_dy[i]) {
      dy = d.dys[next_dy++];
    } else {
      dy = NodeBuilder(d.scope.WithName(absl::StrCat("dy_", i)), "_Arg")
               .Attr("T", WithoutRef(d.results[i].dtype()))
               .Attr("index", static_cast<int64_t>(d.arguments.size() + i))
               .Finish()
               .output(0);
    }
    parts.arguments.push_back({dy.node(), 0});
  }
  for (size_t i = 0; i < d.gradients.size(); ++i) {
    Output gradient = DenseGradient(d.scope, d.gradients[i]);
    if (!gradient.valid()) {
      gradient = NodeBuilder(d.scope, "ZerosLike").Input(d.arguments[i]).Finish().output(0);
    }
    MR_RETURN_IF_ERROR(d.scope.status());
    parts.results.push_back({gradient.node(), gradient.index()});
  }
  parts.effects = EffectsOf(*d.scope.graph());
  graph->set_library(d.scope.graph()->shared_library());
  MR_ASSIGN_OR_RETURN(const auto def, FunctionDefOf(*d.scope.graph(), name, parts));
  tensorflow::FunctionDefLibrary more;
  *more.add_function() = *def;
  MR_ASSIGN_OR_RETURN(auto library, graph->library().With(more));
  graph->set_library(std::move(library));
  return name;
}

}  // namespace millrace
