// SPDX-License-Identifier: Apache-2.0
#include "train/staleness_aware.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "graph/device_name.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "layers/variable_update.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/control/control_flow.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "train/conditional_update.h"

namespace millrace {
namespace {

using Gradients = std::vector<GradientAndVariable>;

// The tensor that holds a gradient's numbers; null when there is none.
Output* ValuesOf(Gradient* gradient) {
  if (Output* dense = std::get_if<Output>(gradient)) return dense;
  if (IndexedSlices* slices = std::get_if<IndexedSlices>(gradient)) return &slices->values;
  return nullptr;
}

bool HasAny(const Gradients& gradients) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [](const GradientAndVariable& pair) { return HasGradient(pair.gradient); });
}

Output CastTo(const Scope& scope, const Output& x, DType dtype) {
  return WithoutRef(x.dtype()) == dtype ? x : Cast(scope, x, dtype);
}

Scope NextTo(const Scope& scope, const Variable& variable) {
  return scope.ColocatedWith(variable.handle.op());
}

// The global step as the step reads it, in the trainer, which sends it back when its own gradients
// are there. It is a reader elsewhere of the variable: read-ahead feeds it as it feeds the weights.
Output ReadInTrainer(const Scope& scope, const Variable& step, Gradients gradients) {
  const Output here = Identity(scope.WithName("read_step"), step.value);
  if (!here.valid()) return Output();
  for (GradientAndVariable& pair : gradients) {
    const Output* const values = ValuesOf(&pair.gradient);
    // One that is made elsewhere would have to say so by a message.
    if (values == nullptr ||
        values->node()->requested_device() != here.node()->requested_device()) {
      continue;
    }
    scope.graph()->AddControlEdge(values->node(), here.node());
  }
  return here;
}

}  // namespace

StalenessAwareOptimizer::StalenessAwareOptimizer(std::unique_ptr<Optimizer> inner,
                                                 const StalenessAwareOptions& options)
    : Optimizer({.name = options.name}), inner_(std::move(inner)), options_(options) {}

Status StalenessAwareOptimizer::CheckOptions(const Scope&) const {
  if (inner_ == nullptr) {
    return InvalidArgument(name(), ": inner must be an optimizer, got null");
  }
  const double power = options_.scale_by_staleness;
  if (!(power >= 0 && std::isfinite(power))) {
    return InvalidArgument(name(), ": scale_by_staleness must be finite and >= 0, got ", power);
  }
  if (options_.drop_above && *options_.drop_above < 0) {
    return InvalidArgument(name(), ": drop_above must be >= 0, got ", *options_.drop_above,
                           "; leave it out to drop nothing");
  }
  return absl::OkStatus();
}

std::vector<GradientAndVariable> StalenessAwareOptimizer::ComputeGradients(
    ScopeAt at, Output loss, const MinimizeOptions& options) {
  at.scope.UpdateStatus(CheckOptions(at.scope), at.where);
  if (!at.scope.ok()) return {};
  return inner_->ComputeGradients(at, std::move(loss), options);
}

Operation StalenessAwareOptimizer::ApplyGradients(ScopeAt at, const Gradients& given,
                                                  const MinimizeOptions& options) {
  read_step_ = staleness_ = Output();
  counts_ = Variable();
  at.scope.UpdateStatus(CheckOptions(at.scope), at.where);
  if (!at.scope.ok()) return Operation();
  if (!is_on()) return inner_->ApplyGradients(at, given, options);
  if (!options.global_step || !options.global_step->valid()) {
    at.scope.UpdateStatus(InvalidArgument(name(),
                                          ": MinimizeOptions::global_step must be given, got none; "
                                          "it tells how stale gradients are"),
                          at.where);
    return Operation();
  }
  const Scope scope = at.here().WithoutControlDependencies();
  MinimizeOptions inner_options = options;
  inner_options.name = "";
  inner_options.clip = {};
  Gradients gradients =
      options.clip ? options.clip(ScopeAt(scope.WithName("").BuiltWhereCalled(), at.where), given)
                   : given;
  if (!at.scope.ok()) return Operation();
  // Its error.
  if (!HasAny(gradients)) return inner_->ApplyGradients(at, gradients, inner_options);

  const Variable& step = *options.global_step;
  const Scope own = scope.WithSubScope(options.name.empty() ? name() : options.name);
  const std::string own_name = own.prefix();
  const Scope beside = NextTo(own, step);
  read_step_ = ReadInTrainer(own, step, gradients);
  const Output read = Identity(beside.WithName("read_step_here"), read_step_);
  if (!at.scope.ok()) return Operation();

  // The look at the global step waits for the gradients that come to its server.
  std::vector<Operation> arrived = {read.op()};
  for (GradientAndVariable& pair : gradients) {
    Output* const values = ValuesOf(&pair.gradient);
    if (values == nullptr) continue;
    const Scope there = NextTo(own, pair.variable).WithSubScope(pair.variable.name);
    *values = Identity(there.WithName("gradient"), *values);
    if (!at.scope.ok()) return Operation();
    if (values->node()->requested_device() == step.handle.node()->requested_device()) {
      arrived.push_back(values->op());
    }
  }
  const Output now =
      ReadVariable(beside.WithControlDependencies(arrived).WithName("step_now"), step);
  const Output zero = Const(beside, int64_t{0});
  // A counter that was set back meanwhile says nothing.
  staleness_ =
      Maximum(beside.WithName("staleness"), CastTo(beside, Sub(beside, now, read), DT_INT64), zero);

  if (options_.scale_by_staleness != 0) {
    const Output one = Const(beside, 1.0);
    const Output times = Add(beside, CastTo(beside, staleness_, DT_DOUBLE), one);
    const Output scale =
        options_.scale_by_staleness == 1
            ? RealDiv(beside.WithName("scale"), one, times)
            : Pow(beside.WithName("scale"), times, Const(beside, -options_.scale_by_staleness));
    for (GradientAndVariable& pair : gradients) {
      Output* const values = ValuesOf(&pair.gradient);
      if (values == nullptr || !at.scope.ok()) continue;
      const Scope there = NextTo(own, pair.variable).WithSubScope(pair.variable.name);
      *values =
          Mul(there.WithName("scaled"), *values, CastTo(there, scale, WithoutRef(values->dtype())));
    }
  }

  const Output no = Const(beside, false);
  const Output dropped = options_.drop_above ? Greater(beside.WithName("dropped"), staleness_,
                                                       Const(beside, int64_t{*options_.drop_above}))
                                             : no;
  const Output scaled =
      options_.scale_by_staleness != 0
          ? LogicalAnd(beside, Greater(beside, staleness_, zero), LogicalNot(beside, dropped))
          : no;
  if (!at.scope.ok()) return Operation();
  counts_ = CountsOf(own, step);
  const Operation counted = AssignAddVariable(
      beside.WithName("count"), counts_,
      Pack(beside, {Cast(beside, scaled, DT_INT64), Cast(beside, dropped, DT_INT64)}));

  const int first = scope.graph()->num_node_ids();
  const Operation update = inner_->ApplyGradients(at, gradients, inner_options);
  if (!at.scope.ok()) return Operation();
  if (options_.drop_above) {
    RunUpdateOnlyIf(own, LogicalNot(beside.WithName("applied"), dropped), update, first,
                    inner_->Variables(scope));
  }
  // Runs after an update that was dropped, too.
  const Operation train = ControlTrigger(
      ScopeAt(beside.WithControlDependencies({counted, update}).WithName(own_name), at.where));
  if (train.valid()) at.scope.AddToNodeCollection("train_op", train.name());
  return train;
}

Variable StalenessAwareOptimizer::CountsOf(const Scope& scope, const Variable& step) {
  Variable& made = made_[scope.graph()];
  if (made.valid()) return made;
  // On the server of the global step a variable is shared by name, and this one is the task's own.
  std::string variable_name = absl::StrCat(name(), "/counts");
  const StatusOr<DeviceName> device = DeviceName::Parse(read_step_.node()->requested_device());
  if (device.ok() && device->job) {
    absl::StrAppend(&variable_name, "_", *device->job, "_", device->task.value_or(0));
  }
  const Scope root = NextTo(scope.WithRootPrefix(), step);
  made = MakeVariable(root.WithName(variable_name), Const<int64_t>(root, {0, 0}),
                      {.trainable = false, .local = true, .use_resource = !step.is_reference()});
  if (made.valid()) AddToCollection(scope, {made}, kStalenessCounts);
  return made;
}

Variable StalenessAwareOptimizer::GetSlot(const Variable& variable, absl::string_view slot) const {
  return inner_ == nullptr ? Variable() : inner_->GetSlot(variable, slot);
}

std::vector<std::string> StalenessAwareOptimizer::GetSlotNames() const {
  return inner_ == nullptr ? std::vector<std::string>() : inner_->GetSlotNames();
}

std::vector<Variable> StalenessAwareOptimizer::Variables(const Scope& scope) const {
  std::vector<Variable> result;
  if (inner_ != nullptr) result = inner_->Variables(scope);
  const auto own = made_.find(scope.graph());
  if (own != made_.end() && own->second.valid()) result.push_back(own->second);
  std::sort(result.begin(), result.end(),
            [](const Variable& a, const Variable& b) { return a.name < b.name; });
  return result;
}

}  // namespace millrace
