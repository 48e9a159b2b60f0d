// SPDX-License-Identifier: Apache-2.0
//
// The gradient of While and For. The forward loop keeps, in one tensor list each, what the gradient
// of its body needs of each iteration; the gradient is a While that takes the lists apart from the
// end.
//
//   forward, in place of the node, a call of a function of
//     While(x, n, lists):  y, inside = body_forward(x)
//                          x = y; n = n + 1; lists = lists + inside
//   gradient
//     While(n, dx, lists): dx = body_grad(inside = the lists' ends, dx)
//                          n = n - 1; lists = lists without their ends
//
// Which variables have a gradient is not only what is asked of the loop's results: one iteration
// carries it from one variable to another, so it is found by going round until nothing is added.
//
// What each iteration gives on as it got it (weights, handles of variables) is in no list. The
// gradient of a handle is the sum of what the iterations give to it, as of any other such variable.

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/function_body.h"
#include "graph/function_builder.h"
#include "graph/function_cut.h"
#include "graph/function_gradient.h"
#include "graph/function_library.h"
#include "graph/gradient.h"
#include "graph/gradient_nodes.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/shape_inference.h"
#include "proto/attr_value.pb.h"

namespace millrace {
namespace {

using function_cut::CallInstead;
using function_cut::CopyBody;
using function_cut::Cut;
using function_cut::Define;
using function_cut::DenseOrZeros;
using function_cut::Differentiate;
using function_cut::Differentiated;
using function_cut::ValuesType;
using gradient_nodes::Const;
using tensorflow::NameAttrList;
using Outputs = std::vector<Output>;

// What a list's elements are known to be, for EmptyTensorList.
Output ElementShape(const Scope& scope, const PartialShape& shape) {
  if (!shape.has_rank()) return Const(scope, "element_shape", Tensor::Scalar<int32_t>(-1));
  std::vector<int32_t> dims;
  for (const int64_t dim : shape.dims()) {
    if (dim > INT32_MAX) return Const(scope, "element_shape", Tensor::Scalar<int32_t>(-1));
    dims.push_back(static_cast<int32_t>(dim));
  }
  return Const(scope, "element_shape", Tensor::Vector<int32_t>(dims));
}

Output EmptyList(const Scope& scope, const PartialShape& element, DType dtype) {
  return NodeBuilder(scope, "EmptyTensorList")
      .Input(ElementShape(scope, element))
      .Input(Const(scope, "max_num_elements", Tensor::Scalar<int32_t>(-1)))
      .Attr("element_dtype", dtype)
      .Finish()
      .output(0);
}

Output Binary(const Scope& scope, const char* op, const Output& a, const Output& b) {
  return NodeBuilder(scope, op).Input(a).Input(b).Finish().output(0);
}

Output CountedBy(const Scope& scope, const Output& count, int32_t by) {
  return Binary(scope, "AddV2", count, Const(scope, "by", Tensor::Scalar<int32_t>(by)));
}

// The argument that the tensor is, through any Identity.
std::optional<size_t> ArgumentOf(const Differentiated& d, Output tensor) {
  while (tensor.node()->traits().hands_on == HandsOn::kValueAndGradient &&
         tensor.node()->control_inputs().empty()) {
    const OutputRef& input = tensor.node()->input(tensor.index());
    tensor = Output(input.node, input.index);
  }
  const auto found = std::find(d.arguments.begin(), d.arguments.end(), tensor);
  if (found == d.arguments.end()) return std::nullopt;
  return static_cast<size_t>(found - d.arguments.begin());
}

class LoopGradient {
 public:
  explicit LoopGradient(GradientContext* context)
      : c_(context),
        scope_(context->scope()),
        node_(const_cast<Node*>(&context->node())),
        is_for_(node_->op() == "For"),
        before_(is_for_ ? 3 : 0),
        own_(is_for_ ? 1 : 0),
        n_(static_cast<size_t>(context->num_outputs())) {}

  Status Run() {
    if (scope_.function_depth() >= kMaxDifferentiatedCalls) {
      return InvalidArgument("calls must be at most ", kMaxDifferentiatedCalls,
                             " deep to be differentiated, got a further one");
    }
    MR_ASSIGN_OR_RETURN(body_, GetAttr<NameAttrList>(*node_, "body"));
    const std::string where = absl::StrCat("Function '", body_.name(), "'");
    MR_RETURN_IF_ERROR(Prefixed(where, DifferentiateBody()));
    if (differentiated_.empty()) return absl::OkStatus();
    MR_RETURN_IF_ERROR(Prefixed(where, CutBody()));
    MR_RETURN_IF_ERROR(RunForward());
    return RunBackward();
  }

 private:
  // Variable i is argument own_ + i of the body, result i, input before_ + i of the node.
  Output InputOf(size_t i) const { return c_->input(before_ + static_cast<int>(i)); }
  DType TypeOf(size_t i) const { return WithoutRef(c_->output(static_cast<int>(i)).dtype()); }

  // What is known of the variables in every iteration. Of the loop's results more may be known (the
  // gradient of an input is shaped as the input), which holds after the last iteration only.
  StatusOr<std::vector<KnownTensor>> Known() const {
    ShapeRefiner* const refiner = scope_.refiner();
    std::vector<PartialShape> of_results;
    for (int i = 0; i < c_->num_outputs(); ++i) {
      of_results.push_back(refiner->OutputShape(*node_, i));
    }
    MR_RETURN_IF_ERROR(refiner->AddNode(*node_));
    std::vector<KnownTensor> known;
    if (is_for_) known.push_back({PartialShape::Scalar(), std::nullopt, nullptr});
    for (int i = 0; i < c_->num_outputs(); ++i) {
      known.push_back({refiner->OutputShape(*node_, i), refiner->OutputHandle(*node_, i), nullptr});
      refiner->ReplaceOutputShape(*node_, i, of_results[static_cast<size_t>(i)]);
    }
    return known;
  }

  Status DifferentiateBody() {
    MR_ASSIGN_OR_RETURN(std::shared_ptr<const FunctionBody> body,
                        scope_.graph()->library().Body(body_));
    if (body->arguments.size() != own_ + n_ || body->results.size() != n_) {
      return InvalidArgument("must have ", own_ + n_, " arguments and ", n_,
                             " results as the loop, got ", body->arguments.size(), " and ",
                             body->results.size());
    }
    MR_ASSIGN_OR_RETURN(const std::vector<KnownTensor> known, Known());
    std::vector<bool> has_dy(n_);
    for (size_t i = 0; i < n_; ++i) has_dy[i] = c_->has_grad(static_cast<int>(i));
    for (;;) {
      // A handle's is added up outside of the body.
      std::vector<bool> of_body = has_dy;
      for (size_t i = 0; i < n_; ++i) of_body[i] = of_body[i] && TypeOf(i) != DT_RESOURCE;
      d_ = std::make_unique<Differentiated>(scope_, body);
      MR_RETURN_IF_ERROR(CopyBody(known, d_.get()));
      MR_RETURN_IF_ERROR(Differentiate(of_body, c_->source(), d_.get()));
      bool more = false;
      for (size_t i = 0; i < n_; ++i) {
        if (has_dy[i] || !HasGradient(d_->gradients[own_ + i])) continue;
        has_dy[i] = true;
        more = more || TypeOf(i) != DT_RESOURCE;
      }
      if (!more) break;
    }
    scope_.graph()->set_library(d_->scope.graph()->shared_library());
    invariant_.resize(n_);
    for (size_t i = 0; i < n_; ++i) {
      invariant_[i] = ArgumentOf(*d_, d_->results[i]) == own_ + i;
      if (!has_dy[i]) continue;
      if (TypeOf(i) == DT_RESOURCE && !invariant_[i]) {
        return Unimplemented("variable ", i,
                             " is the handle of another resource in each iteration; a gradient "
                             "needs the same in all");
      }
      differentiated_.push_back(i);
    }
    return absl::OkStatus();
  }

  Status CutBody() {
    std::vector<Gradient> dense(d_->gradients.size());
    for (const size_t i : differentiated_) {
      const DType type = TypeOf(i) == DT_RESOURCE ? HeldBy(i) : TypeOf(i);
      held_.push_back(type);
      dense[own_ + i] = DenseOrZeros(d_.get(), own_ + i, type);
    }
    MR_RETURN_IF_ERROR(d_->scope.status());
    d_->gradients = std::move(dense);
    cut_.emplace(d_.get());
    MR_RETURN_IF_ERROR(cut_->Run());
    // Kept of each iteration: arguments that differ, then what is inside.
    for (const size_t a : cut_->from_call()) {
      if (a >= own_ && invariant_[a - own_]) continue;
      kept_arguments_.push_back(a);
      kept_.push_back({d_->arguments[a].node(), 0});
    }
    kept_.insert(kept_.end(), cut_->inside().begin(), cut_->inside().end());
    MR_ASSIGN_OR_RETURN(forward_body_, Define(scope_, absl::StrCat(body_.name(), "_forward"),
                                              *d_->scope.graph(), cut_->ForwardParts()));
    MR_ASSIGN_OR_RETURN(backward_body_, Define(scope_, absl::StrCat(body_.name(), "_grad"),
                                               *d_->scope.graph(), cut_->parts()));
    return absl::OkStatus();
  }

  DType HeldBy(size_t i) const {
    const DType type = ValuesType(d_->gradients[own_ + i]);
    if (type != DT_INVALID) return type;
    return ValuesType(c_->grad(static_cast<int>(i)));
  }

  DType KeptType(size_t k) const { return WithoutRef(kept_[k].node->output_type(kept_[k].index)); }

  // --- Forward

  // Variables of the loops are the node's, the count, the lists.
  std::vector<DType> ForwardTypes() const {
    std::vector<DType> types;
    for (size_t i = 0; i < n_; ++i) types.push_back(TypeOf(i));
    types.push_back(DT_INT32);
    types.resize(types.size() + kept_.size(), DT_VARIANT);
    return types;
  }

  // f(args), by name and attrs.
  static BuiltNode CallOf(const Scope& scope, const NameAttrList& f, absl::Span<const Output> args,
                          const std::vector<DType>& results) {
    const FunctionLibrary& library = scope.graph()->library();
    const std::shared_ptr<const Function> function = library.Find(f.name());
    const bool is_stateful = function != nullptr && library.IsStateful(*function);
    return NodeBuilder(scope, is_stateful ? "StatefulPartitionedCall" : "PartitionedCall")
        .Input(args)
        .Attr("Tout", results)
        .Attr("f", f)
        .Finish();
  }
  static NameAttrList Named(const std::string& name) {
    NameAttrList f;
    f.set_name(name);
    return f;
  }

  Outputs ForwardIteration(const Scope& s, const Outputs& args) const {
    std::vector<DType> types = ForwardTypes();
    types.resize(n_);
    const std::vector<DType> inside = cut_->inside_types();
    types.insert(types.end(), inside.begin(), inside.end());
    const size_t own_and_n = own_ + n_;
    const Outputs results =
        CallOf(s, Named(forward_body_), absl::MakeConstSpan(args).subspan(0, own_and_n), types)
            .outputs(0, static_cast<int>(types.size()));
    if (results.empty()) return {};
    Outputs next(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(n_));
    next.push_back(CountedBy(s, args[own_and_n], 1));
    for (size_t k = 0; k < kept_.size(); ++k) {
      const Output& value = k < kept_arguments_.size() ? args[kept_arguments_[k]]
                                                       : results[n_ + k - kept_arguments_.size()];
      next.push_back(Binary(s, "TensorListPushBack", args[own_and_n + 1 + k], value));
    }
    return next;
  }

  // The node becomes a call of what runs the loop and gives its count and lists, too.
  Status RunForward() {
    const std::vector<DType> types = ForwardTypes();
    std::vector<DType> body_types = types, input_types;
    if (is_for_) body_types.insert(body_types.begin(), DT_INT32);
    for (int i = 0; i < c_->num_inputs(); ++i) {
      input_types.push_back(WithoutRef(c_->input(i).dtype()));
    }
    const DefinedFunction body = DefineFunction(
        scope_, absl::StrCat(body_.name(), "_kept"), body_types,
        [this](const Scope& s, const Outputs& args) { return ForwardIteration(s, args); });
    DefinedFunction cond;
    if (!is_for_) {
      MR_ASSIGN_OR_RETURN(const auto f, GetAttr<NameAttrList>(*node_, "cond"));
      MR_ASSIGN_OR_RETURN(const auto made, scope_.graph()->library().Body(f));
      if (made->result_types.size() != 1) {
        return InvalidArgument("the function of attr 'cond' must have one result, got ",
                               made->result_types.size());
      }
      const DType type = made->result_types[0];
      cond = DefineFunction(
          scope_, absl::StrCat(f.name(), "_kept"), types, [&](const Scope& s, const Outputs& args) {
            return CallOf(s, f, absl::MakeConstSpan(args).subspan(0, n_), {type}).outputs(0, 1);
          });
    }
    const DefinedFunction loop = DefineFunction(
        scope_, absl::StrCat(body_.name(), "_loop"), input_types,
        [&](const Scope& s, const Outputs& args) {
          Outputs variables(args.begin() + before_, args.end());
          variables.push_back(Const(s, "count", Tensor::Scalar<int32_t>(0)));
          for (size_t k = 0; k < kept_.size(); ++k) {
            const PartialShape element = d_->scope.shape(Output(kept_[k].node, kept_[k].index));
            variables.push_back(EmptyList(s, element, KeptType(k)));
          }
          NodeBuilder builder(s, LoopOp(body, cond));
          for (int i = 0; i < before_; ++i) builder.Input(args[static_cast<size_t>(i)]);
          builder.Input(absl::MakeConstSpan(variables)).Attr("body", Named(body.name));
          if (!is_for_) builder.Attr("cond", Named(cond.name));
          return builder.Finish().outputs(0, static_cast<int>(types.size()));
        });
    MR_RETURN_IF_ERROR(scope_.status());
    std::vector<PartialShape> of_results;
    for (size_t i = 0; i < n_; ++i) {
      of_results.push_back(scope_.refiner()->OutputShape(*node_, static_cast<int>(i)));
    }
    MR_RETURN_IF_ERROR(
        CallInstead(scope_, node_, loop.name, absl::MakeConstSpan(types).subspan(n_)));
    for (size_t i = 0; i < n_; ++i) {
      MR_RETURN_IF_ERROR(
          scope_.refiner()->MergeOutputShape(*node_, static_cast<int>(i), of_results[i]));
    }
    return absl::OkStatus();
  }

  const char* LoopOp(const DefinedFunction& body, const DefinedFunction& cond) const {
    if (is_for_) return "For";
    return body.has_effects || cond.has_effects ? "While" : "StatelessWhile";
  }

  // --- Backward
  //
  // Variables: the count, gradients, lists, then what is the same in each iteration.

  Outputs BackwardIteration(const Scope& s, const Outputs& args) const {
    const size_t num = differentiated_.size(), lists = 1 + num;
    const Output any_shape = Const(s, "any_shape", Tensor::Scalar<int32_t>(-1));
    Outputs popped, shorter;
    for (size_t k = 0; k < kept_.size(); ++k) {
      const BuiltNode pop = NodeBuilder(s, "TensorListPopBack")
                                .Input(args[lists + k])
                                .Input(any_shape)
                                .Attr("element_dtype", KeptType(k))
                                .Finish();
      shorter.push_back(pop.output(0));
      popped.push_back(pop.output(1));
    }
    Outputs inputs;
    size_t kept = 0, same = lists + kept_.size();
    for (const size_t a : cut_->from_call()) {
      inputs.push_back(a >= own_ && invariant_[a - own_] ? args[same++] : popped[kept++]);
    }
    inputs.insert(inputs.end(), popped.begin() + static_cast<std::ptrdiff_t>(kept), popped.end());
    for (size_t g = 0; g < num; ++g) {
      if (TypeOf(differentiated_[g]) != DT_RESOURCE) inputs.push_back(args[1 + g]);
    }
    const BuiltNode call = CallOf(s, Named(backward_body_), inputs, cut_->result_types());
    Outputs next = {CountedBy(s, args[0], -1)};
    for (size_t g = 0; g < num; ++g) {
      const Output dx = call.output(static_cast<int>(g));
      const bool is_handle = TypeOf(differentiated_[g]) == DT_RESOURCE;
      next.push_back(is_handle ? Binary(s, "AddV2", args[1 + g], dx) : dx);
    }
    next.insert(next.end(), shorter.begin(), shorter.end());
    next.insert(next.end(), args.begin() + static_cast<std::ptrdiff_t>(lists + kept_.size()),
                args.end());
    return next;
  }

  // The gradient of what the handle held, so far: what came back to the loop's result.
  Output FirstOfHandle(size_t g) {
    const size_t i = differentiated_[g];
    if (c_->has_grad(static_cast<int>(i))) return c_->dense_grad(static_cast<int>(i));
    const Output value = NodeBuilder(scope_, "ReadVariableOp")
                             .Input(InputOf(i))
                             .Attr("dtype", held_[g])
                             .Finish()
                             .output(0);
    return NodeBuilder(scope_, "ZerosLike").Input(value).Finish().output(0);
  }

  Status RunBackward() {
    const int count_at = static_cast<int>(n_);
    Outputs variables = {Output(node_, count_at)};
    for (size_t g = 0; g < differentiated_.size(); ++g) {
      const size_t i = differentiated_[g];
      variables.push_back(TypeOf(i) == DT_RESOURCE ? FirstOfHandle(g)
                                                   : c_->dense_grad(static_cast<int>(i)));
    }
    for (size_t k = 0; k < kept_.size(); ++k) {
      variables.push_back(Output(node_, count_at + 1 + static_cast<int>(k)));
    }
    for (const size_t a : cut_->from_call()) {
      if (a >= own_ && invariant_[a - own_]) variables.push_back(InputOf(a - own_));
    }
    MR_RETURN_IF_ERROR(scope_.status());
    std::vector<DType> types;
    for (const Output& variable : variables) types.push_back(WithoutRef(variable.dtype()));
    const DefinedFunction cond =
        DefineFunction(scope_, absl::StrCat(body_.name(), "_grad_cond"), types,
                       [](const Scope& s, const Outputs& args) {
                         return Outputs{Binary(s, "Greater", args[0],
                                               Const(s, "zero", Tensor::Scalar<int32_t>(0)))};
                       });
    const DefinedFunction body = DefineFunction(
        scope_, absl::StrCat(body_.name(), "_grad_body"), types,
        [this](const Scope& s, const Outputs& args) { return BackwardIteration(s, args); });
    const BuiltNode loop = NodeBuilder(scope_, body.has_effects ? "While" : "StatelessWhile")
                               .Input(absl::MakeConstSpan(variables))
                               .Attr("cond", Named(cond.name))
                               .Attr("body", Named(body.name))
                               .Finish();
    MR_RETURN_IF_ERROR(scope_.status());
    for (size_t g = 0; g < differentiated_.size(); ++g) {
      c_->set_input_grad(before_ + static_cast<int>(differentiated_[g]),
                         loop.output(1 + static_cast<int>(g)));
    }
    return absl::OkStatus();
  }

  GradientContext* const c_;
  const Scope& scope_;
  Node* const node_;
  const bool is_for_;
  const int before_;  // inputs of the node that are no variables
  const size_t own_;  // arguments of the body that are no variables
  const size_t n_;    // variables
  NameAttrList body_;
  std::unique_ptr<Differentiated> d_;
  std::vector<bool> invariant_;         // by variable: each iteration gives it on
  std::vector<size_t> differentiated_;  // variables that have a gradient
  std::vector<DType> held_;             // of these: the gradient's type
  std::optional<Cut> cut_;
  std::vector<size_t> kept_arguments_;  // of the body
  std::vector<OutputRef> kept_;         // tensors of the body: these arguments, what is inside
  std::string forward_body_, backward_body_;
};

}  // namespace

Status GradientOfLoop(GradientContext* context) { return LoopGradient(context).Run(); }

}  // namespace millrace
