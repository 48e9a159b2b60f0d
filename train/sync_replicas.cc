// SPDX-License-Identifier: Apache-2.0
#include "train/sync_replicas.h"

#include <map>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "ops/array/identity.h"
#include "ops/control/asserts.h"
#include "ops/control/control_flow.h"
#include "ops/math/cast.h"
#include "ops/training/sync_replicas.h"
#include "runtime/session.h"
#include "train/conditional_update.h"
#include "train/known_shape.h"
#include "train/local_sgd.h"
#include "train/sync_collections.h"

namespace millrace {
namespace {

class JoinHook final : public SessionRunHook {
 public:
  explicit JoinHook(Operation join) : join_(std::move(join)) {}
  std::string name() const override { return "SyncReplicasHook"; }
  Status AfterCreateSession(RunContext* context, const CreatedSession&) override {
    return context->session()->Run({}, {}, {join_}).status();
  }

 private:
  const Operation join_;
};

// Where a step leads, and only there, what depends on these runs: one for each device.
class Leads {
 public:
  Leads(const Scope& scope, const Output& leads) : scope_(scope), leads_(leads) {}

  Operation Beside(const Output& what) {
    const auto [it, is_new] = on_.try_emplace(what.node()->requested_device());
    if (is_new)
      it->second = Identity(scope_.ColocatedWith(what.op()).WithName("leads"), leads_).op();
    return it->second;
  }

 private:
  const Scope scope_;
  const Output leads_;
  std::map<std::string, Operation> on_;  // by the device that is asked for
};

// Where the gradients for one variable go, beside it.
struct Accumulator {
  Variable variable;
  Output handle;
  Operation applied;  // of this step
  bool is_sparse = false;
  Output dense_shape;  // of a sparse one
};

// The numbers of a gradient: of a sparse one its rows.
Output* ValuesOf(GradientAndVariable* pair) {
  auto* const rows = std::get_if<IndexedSlices>(&pair->gradient);
  return rows != nullptr ? &rows->values : &std::get<Output>(pair->gradient);
}

// The same gradients, none of which is there before all of them are known to be finite: so a step
// gives all or nothing. This happens where they are computed, and adds no message.
void GiveOnlyIfAllAreFinite(const Scope& inside, const std::string& trainer,
                            std::vector<GradientAndVariable>* gradients) {
  std::vector<Output*> values;
  std::vector<Operation> checks;
  for (GradientAndVariable& pair : *gradients) {
    if (!HasGradient(pair.gradient)) continue;
    Output* const value = ValuesOf(&pair);
    values.push_back(value);
    if (!IsFloating(value->dtype())) continue;
    *value = CheckNumerics(
        inside.ColocatedWith(value->op()).WithName(pair.variable.name + "_given/check"), *value,
        absl::StrCat("SyncReplicas: the gradient of ", trainer.empty() ? "this process" : trainer,
                     " for '", pair.variable.name, "' must be finite, got an infinite number or ",
                     "NaN; a lower learning rate, or clipped gradients, may help"));
    if (!inside.ok()) return;
    checks.push_back(value->op());
  }
  if (checks.size() < 2) return;
  for (Output* const value : values) {
    *value = Identity(
        inside.ColocatedWith(value->op()).WithControlDependencies(checks).WithName("all_finite"),
        *value);
    if (!inside.ok()) return;
  }
}

// `name`: what all workers call it.
StatusOr<Accumulator> Accumulate(const Scope& inside, const GradientAndVariable& pair,
                                 const Output& round, const std::string& trainer,
                                 const std::string& name) {
  Accumulator a;
  a.variable = pair.variable;
  StatusOr<Shape> shape = KnownShape(a.variable);
  if (!shape.ok()) return Prefixed("SyncReplicasOptimizer", shape.status());
  const Scope near =
      inside.ColocatedWith(a.variable.handle.op()).WithSubScope(a.variable.name + "_given");
  const auto* const rows = std::get_if<IndexedSlices>(&pair.gradient);
  a.is_sparse = rows != nullptr;
  a.handle = SyncReplicasAccumulator(
      near.WithName("accumulator"), a.variable.dtype, PartialShape(*shape),
      {.is_sparse = a.is_sparse, .shared_name = absl::StrCat(name, "/grad_accum")});
  if (rows == nullptr) {
    a.applied = SyncReplicasApply(near.WithName("apply"), a.handle, round,
                                  std::get<Output>(pair.gradient), trainer);
    return a;
  }
  a.dense_shape = rows->dense_shape;
  const Output indices = rows->indices.dtype() == DT_INT64
                             ? rows->indices
                             : Cast(near.WithName("indices"), rows->indices, DT_INT64);
  a.applied = SyncReplicasApplyRows(near.WithName("apply"), a.handle, round, indices, rows->values,
                                    trainer);
  return a;
}

GradientAndVariable MeanOf(const Scope& inside, const Accumulator& a, const Output& round,
                           const Output& least) {
  const Scope near =
      inside.ColocatedWith(a.variable.handle.op()).WithSubScope(a.variable.name + "_mean");
  if (!a.is_sparse) {
    return {SyncReplicasTake(near.WithName("take"), a.handle, round, least, a.variable.dtype),
            a.variable};
  }
  const SyncReplicasRows rows =
      SyncReplicasTakeRows(near.WithName("take"), a.handle, round, least, a.variable.dtype);
  return {IndexedSlices{.values = rows.values,
                        .indices = rows.indices,
                        .dense_shape = a.dense_shape,
                        .unique_indices = true},
          a.variable};
}

}  // namespace

SyncReplicasOptimizer::SyncReplicasOptimizer(std::shared_ptr<Optimizer> inner,
                                             const SyncReplicasOptions& options)
    : Optimizer({.name = options.name}), inner_(std::move(inner)), options_(options) {}

int64_t SyncReplicasOptimizer::replicas() const {
  if (options_.replicas_to_aggregate != 0) return options_.replicas_to_aggregate;
  return options_.total_num_replicas - options_.backup_workers;
}

Status SyncReplicasOptimizer::CheckOptions(const Scope&) const {
  if (inner_ == nullptr) {
    return InvalidArgument("SyncReplicasOptimizer: there must be an optimizer to wrap, got none");
  }
  // All workers make one update then, and there are no copies that could differ.
  if (dynamic_cast<const LocalSgdOptimizer*>(inner_.get()) != nullptr) {
    return InvalidArgument(
        "SyncReplicasOptimizer: the optimizer to wrap must train without copies, got LocalSgd; put "
        "a "
        "SyncReplicasOptimizer around LocalSgd's outer optimizer instead");
  }
  const auto check = [](const char* what, int64_t least, int64_t value) {
    if (value >= least) return absl::OkStatus();
    return InvalidArgument("SyncReplicasOptimizer: ", what, " must be >= ", least, ", got ", value);
  };
  MR_RETURN_IF_ERROR(check("backup_workers", 0, options_.backup_workers));
  MR_RETURN_IF_ERROR(check("total_num_replicas", 0, options_.total_num_replicas));
  MR_RETURN_IF_ERROR(check("replicas_to_aggregate", 1, replicas()));
  if (options_.total_num_replicas > 0 &&
      replicas() + options_.backup_workers > options_.total_num_replicas) {
    return InvalidArgument(
        "SyncReplicasOptimizer: replicas_to_aggregate + backup_workers must be "
        "<= total_num_replicas ",
        options_.total_num_replicas, ", got ", replicas(), " + ", options_.backup_workers);
  }
  if (options_.start_wait < absl::ZeroDuration()) {
    return InvalidArgument("SyncReplicasOptimizer: start_wait must be >= 0, got ",
                           absl::FormatDuration(options_.start_wait));
  }
  return absl::OkStatus();
}

std::vector<GradientAndVariable> SyncReplicasOptimizer::ComputeGradients(
    ScopeAt at, Output loss, const MinimizeOptions& options) {
  at.scope.UpdateStatus(CheckOptions(at.scope), at.where);
  if (!at.scope.ok()) return {};
  return inner_->ComputeGradients(at, std::move(loss), options);
}

Operation SyncReplicasOptimizer::ApplyGradients(ScopeAt at,
                                                const std::vector<GradientAndVariable>& given,
                                                const MinimizeOptions& options) {
  at.scope.UpdateStatus(CheckOptions(at.scope), at.where);
  if (at.scope.ok() && !(options.global_step && options.global_step->valid())) {
    at.scope.UpdateStatus(
        InvalidArgument("SyncReplicasOptimizer: Global step is required, got none; set "
                        ".global_step = GlobalStep(scope)"),
        at.where);
  }
  if (!at.scope.ok()) return Operation();
  const Scope scope = at.here().WithoutControlDependencies();
  const Scope clips = scope.WithName("").BuiltWhereCalled();
  std::vector<GradientAndVariable> gradients =
      options.clip ? options.clip(ScopeAt(clips, at.where), given) : given;
  if (!at.scope.ok()) return Operation();

  const Variable& step = *options.global_step;
  const std::string result_name = options.name.empty() ? name() : options.name;
  const Scope inside = scope.WithSubScope(result_name);
  // Unique in the graph, and the same for all workers. It ends the scope.
  const std::string own_name = inside.prefix();
  const std::string shared = own_name.substr(0, own_name.find_last_not_of('/') + 1);
  const Scope beside_step = inside.ColocatedWith(step.handle.op());
  // Where the model's own nodes are: this worker.
  const Operation here = NoOp(inside.WithName("worker"));
  if (!at.scope.ok()) return Operation();
  const std::string trainer = here.node()->requested_device();

  rounds_ = SyncReplicasRounds(beside_step.WithName("rounds"),
                               {.replicas_to_aggregate = replicas(),
                                .start_wait_ms = absl::ToInt64Milliseconds(options_.start_wait),
                                .shared_name = absl::StrCat(shared, "/rounds")});
  const Output join = SyncReplicasJoin(beside_step.WithName("join"), rounds_, trainer);
  const Output round = SyncReplicasRound(beside_step.WithName("round"), rounds_, trainer);
  const Operation leave = SyncReplicasLeave(beside_step.WithName("leave"), rounds_);
  if (!at.scope.ok()) return Operation();
  join_ = join.op();
  at.scope.AddToNodeCollection(kSyncReplicasJoins, join.node()->name());
  at.scope.AddToNodeCollection(kSyncReplicasLeaves, leave.name());

  GiveOnlyIfAllAreFinite(inside, trainer, &gradients);
  if (!at.scope.ok()) return Operation();
  std::vector<Accumulator> accumulators;
  for (const GradientAndVariable& pair : gradients) {
    if (!HasGradient(pair.gradient)) continue;
    const StatusOr<Accumulator> accumulator =
        Accumulate(inside, pair, round, trainer, absl::StrCat(shared, "/", pair.variable.name));
    if (!accumulator.ok()) {
      at.scope.UpdateStatus(accumulator.status(), at.where);
      return Operation();
    }
    accumulators.push_back(*accumulator);
  }
  // The inner optimizer says what is wrong with no gradients at all.
  if (accumulators.empty()) return inner_->ApplyGradients(at, gradients, {.global_step = step});

  std::vector<Operation> applied;
  for (const Accumulator& a : accumulators) applied.push_back(a.applied);
  const SyncReplicasGiven gave = SyncReplicasGive(
      beside_step.WithName("give").WithControlDependencies(applied), rounds_, round);
  const SwitchOutputs way = Switch(beside_step.WithName("way"), gave.leads, gave.leads);
  const SwitchOutputs next = Switch(beside_step.WithName("next"), gave.next_round, gave.leads);
  if (!at.scope.ok()) return Operation();

  // Of the step that leads.
  Leads leads(inside, way.output_true);
  std::vector<GradientAndVariable> means;
  for (const Accumulator& a : accumulators) {
    means.push_back(MeanOf(inside.WithControlDependencies({leads.Beside(a.variable.handle)}), a,
                           round, gave.gradients));
  }
  if (!at.scope.ok()) return Operation();
  const int first = at.scope.graph()->num_node_ids();
  const Operation update =
      inner_->ApplyGradients(ScopeAt(scope.WithName(""), at.where), means, {.global_step = step});
  if (!at.scope.ok() || !update.valid()) return Operation();
  // Most of it needs a mean, but not all: Adam's moments decay whatever the rows are.
  RunUpdateOnlyIf(inside, gave.leads, update, first, inner_->Variables(scope));
  const Output done = SyncReplicasDone(
      beside_step.WithName("done").WithControlDependencies({update, leads.Beside(step.handle)}),
      rounds_, round);

  // Either way the step has ended then, where the global step is.
  const Output ended = Merge(beside_step.WithName("ended"), {done, next.output_false}).output;
  if (!at.scope.ok()) return Operation();
  const Operation train =
      NoOp(ScopeAt(beside_step.WithControlDependencies({ended.op()}).WithName(own_name), at.where));
  if (train.valid()) at.scope.AddToNodeCollection("train_op", train.name());
  return train;
}

Variable SyncReplicasOptimizer::GetSlot(const Variable& variable, absl::string_view slot) const {
  return inner_ == nullptr ? Variable() : inner_->GetSlot(variable, slot);
}
std::vector<std::string> SyncReplicasOptimizer::GetSlotNames() const {
  return inner_ == nullptr ? std::vector<std::string>() : inner_->GetSlotNames();
}
std::vector<Variable> SyncReplicasOptimizer::Variables(const Scope& scope) const {
  return inner_ == nullptr ? std::vector<Variable>() : inner_->Variables(scope);
}

Output SyncReplicasOptimizer::Counts(ScopeAt at) const {
  if (!rounds_.valid()) return Output();
  return SyncReplicasCounts(at.here().ColocatedWith(rounds_.op()), rounds_);
}

std::unique_ptr<SessionRunHook> SyncReplicasOptimizer::MakeSessionRunHook() const {
  if (!join_.valid()) return nullptr;
  return std::make_unique<JoinHook>(join_);
}

}  // namespace millrace
