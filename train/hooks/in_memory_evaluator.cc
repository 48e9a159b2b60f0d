// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/in_memory_evaluator.h"

#include <map>
#include <utility>

#include "core/logging.h"
#include "core/tensor.h"
#include "layers/variable_update.h"
#include "ops/array/placeholder.h"
#include "proto/meta_graph.pb.h"

namespace millrace {

Status InMemoryEvaluatorHook::CompleteGraph(const Scope& graph) {
  if (!copies_.empty()) return absl::OkStatus();
  const Scope root = graph.WithRootPrefix().WithoutControlDependencies();
  const Scope scope = root.WithSubScope("in_memory_evaluator");
  for (const Variable& variable : VariablesOf(root)) {
    const Output placeholder = Placeholder(scope, variable.dtype, variable.shape);
    copies_.push_back({.name = variable.name,
                       .from = {},
                       .placeholder = placeholder,
                       .assign = AssignVariable(scope, variable, placeholder)});
  }
  if (!VariablesOf(root, "local_variables").empty()) {
    prepare_.push_back(LocalVariablesInitializer(root));
  }
  const auto tables = root.collections()->find("table_initializer");
  if (tables != root.collections()->end()) {
    for (const std::string& name : tables->second.node_list().value()) tables_.push_back(name);
  }
  MR_RETURN_IF_ERROR(root.status());
  root.Finalize();
  return absl::OkStatus();
}

Status InMemoryEvaluatorHook::Begin(HookSetup* setup) {
  if (!options_.evaluate || options_.every_n_runs <= 0) {
    return InvalidArgument("evaluate must be given and every_n_runs be > 0, got ",
                           options_.evaluate ? "a function" : "none", " and ",
                           options_.every_n_runs);
  }
  MR_ASSIGN_OR_RETURN(global_step_, setup->GlobalStep());
  MR_RETURN_IF_ERROR(CompleteGraph(options_.graph.BuiltAt(setup->scope_of_session().built_at())));
  std::map<std::string, Variable> trained;
  for (const Variable& variable : VariablesOf(setup->scope())) {
    trained.emplace(variable.name, variable);
  }
  for (Copy& copy : copies_) {
    const auto found = trained.find(copy.name);
    if (found == trained.end()) {
      return InvalidArgument("variable '", copy.name,
                             "' of the evaluation's graph must be one of the training graph, got "
                             "none of that name");
    }
    const PartialShape shape = options_.graph.shape(copy.placeholder);
    if (found->second.dtype != copy.placeholder.dtype() ||
        !found->second.shape.IsCompatibleWith(shape)) {
      return InvalidArgument("variable '", copy.name, "' must be ", copy.placeholder.dtype(), " ",
                             shape, " in the training graph, too, got ", found->second.dtype, " ",
                             found->second.shape);
    }
    copy.from = found->second.value;
  }
  session_ = nullptr;
  timer_ = StepTimer(options_.every_n_runs);
  evaluated_at_ = -1;
  return absl::OkStatus();
}

Status InMemoryEvaluatorHook::AfterCreateSession(RunContext* context,
                                                 const CreatedSession& created) {
  if (created.is_recovery) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(session_, NewSession());
  MR_RETURN_IF_ERROR(session_->Extend(options_.graph));
  if (!tables_.empty()) {
    MR_RETURN_IF_ERROR(session_->Run({}, {}, {tables_.begin(), tables_.end()}).status());
  }
  timer_.Done(context->run_number() - 1, context->now());
  return Evaluate(created.session.get());
}

Status InMemoryEvaluatorHook::AfterRun(RunContext* context, const RunValues&) {
  if (!timer_.IsDue(context->run_number(), absl::InfinitePast())) return absl::OkStatus();
  timer_.Done(context->run_number(), absl::InfinitePast());
  return Evaluate(context->session());
}

Status InMemoryEvaluatorHook::End(const LoopEnd& end) {
  if (!end.nothing_to_save) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, end.session->Run({}, {global_step_.value}));
    if (StepIn(out[0]) != evaluated_at_) MR_RETURN_IF_ERROR(Evaluate(end.session));
  }
  return session_->Close();
}

Status InMemoryEvaluatorHook::Evaluate(Session* training) {
  std::vector<FetchName> fetches = {global_step_.value};
  for (const Copy& copy : copies_) fetches.emplace_back(copy.from);
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> values, training->Run({}, fetches));
  const int64_t step = StepIn(values[0]);
  std::vector<Feed> feeds;
  std::vector<FetchName> assigns(prepare_.begin(), prepare_.end());
  for (size_t i = 0; i < copies_.size(); ++i) {
    feeds.emplace_back(copies_[i].placeholder, std::move(values[i + 1]));
    assigns.emplace_back(copies_[i].assign);
  }
  if (!assigns.empty()) MR_RETURN_IF_ERROR(session_->Run(feeds, {}, assigns).status());
  evaluated_at_ = step;
  MR_ASSIGN_OR_RETURN(const std::string line, options_.evaluate(session_.get(), step));
  if (!line.empty()) LogInfo(name(), ": step ", step, ": ", line);
  return absl::OkStatus();
}

}  // namespace millrace
