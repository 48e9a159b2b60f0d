// SPDX-License-Identifier: Apache-2.0
#include "train/session_creator.h"

#include <optional>
#include <utility>

#include "graph/graph.h"
#include "proto/meta_graph.pb.h"

namespace millrace {
namespace {

constexpr char kName[] = "MonitoredSession";

// The one element of a collection of nodes; invalid when there is none.
StatusOr<Output> OnlyOneOf(const Scope& root, const std::string& key) {
  const auto found = root.collections()->find(key);
  if (found == root.collections()->end()) return Output();
  const auto& names = found->second.node_list().value();
  if (names.empty()) return Output();
  if (names.size() > 1) {
    return InvalidArgument("Scaffold: collection '", key, "' must have one element, got ",
                           names.size(), "; name the one in the Scaffold");
  }
  std::string node = names[0];
  const size_t colon = node.rfind(':');
  if (colon != std::string::npos) node.resize(colon);
  Node* const made = root.graph()->FindNode(node);
  if (made == nullptr) {
    return InvalidArgument("Scaffold: collection '", key, "' must name what is in the graph, got '",
                           names[0], "'");
  }
  return Output(made, 0);
}

// Fills in what the collections of the graph say.
Status TakeDefaults(const Scope& root, Scaffold* scaffold) {
  const auto output = [&](const char* key, Output* field) -> Status {
    if (field->valid()) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(*field, OnlyOneOf(root, key));
    return absl::OkStatus();
  };
  const auto operation = [&](const char* key, Operation* field) -> Status {
    if (field->valid()) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const Output found, OnlyOneOf(root, key));
    *field = found.op();
    return absl::OkStatus();
  };
  MR_RETURN_IF_ERROR(operation("init_op", &scaffold->init_op));
  MR_RETURN_IF_ERROR(output("ready_op", &scaffold->ready_op));
  MR_RETURN_IF_ERROR(output("ready_for_local_init_op", &scaffold->ready_for_local_init_op));
  MR_RETURN_IF_ERROR(operation("local_init_op", &scaffold->local_init_op));
  return output("summary_op", &scaffold->summary_op);
}

// What both kinds of tasks tell their sessions. `options` with the defaults of the graph.
JobSessionsOptions OfJob(const SessionCreatorOptions& options, bool is_chief, int64_t last_step) {
  const Scaffold& scaffold = options.scaffold;
  JobSessionsOptions of_job;
  of_job.is_chief = is_chief;
  of_job.target = options.target;
  of_job.manager = {.name = kName,
                    .ready_op = scaffold.ready_op,
                    .ready_for_local_init_op = scaffold.ready_for_local_init_op,
                    .init_op = scaffold.init_op,
                    .init_feeds = scaffold.init_feeds,
                    .init_fn = scaffold.init_fn,
                    .local_init_op = scaffold.local_init_op,
                    .checkpoint_dir = options.checkpoint_dir,
                    .global_step = options.global_step,
                    .last_step = last_step,
                    .recovery_wait = options.recovery_wait,
                    .end_grace = options.end_grace,
                    .max_wait = options.max_wait,
                    .session = options.session,
                    .clock = options.clock,
                    .file_system = options.file_system};
  of_job.directory_option = options.directory_option;
  return of_job;
}

}  // namespace

// --- The chief -----------------------------------------------------------------------------------

ChiefSessionCreator::ChiefSessionCreator(const Scope& scope, SessionCreatorOptions options)
    : scope_(scope.WithRootPrefix().WithoutControlDependencies()), options_(std::move(options)) {}

StatusOr<std::shared_ptr<JobSessions>> ChiefSessionCreator::CompleteGraph(int64_t last_step) {
  MR_RETURN_IF_ERROR(scope_.status());
  SessionCreatorOptions options = options_;
  if (!options.checkpoint_path.empty() &&
      !(options.checkpoint_dir.empty() && options.begin_from.empty())) {
    return InvalidArgument(
        kName,
        ": checkpoint_path must come without checkpoint_dir and "
        "begin_from, got '",
        options.checkpoint_path, "' and '",
        options.checkpoint_dir.empty() ? options.begin_from : options.checkpoint_dir, "'");
  }
  const Scope scope = ScopeAt(scope_, opened_at()).here();
  MR_RETURN_IF_ERROR(TakeDefaults(scope, &options.scaffold));
  JobSessionsOptions of_job = OfJob(options, /*is_chief=*/true, last_step);
  of_job.manager.begin_from =
      options.checkpoint_path.empty() ? options.begin_from : options.checkpoint_path;
  of_job.saver = options.scaffold.saver;
  of_job.saver_options = options.saver;
  return JobSessions::Make(scope, std::move(of_job));
}

// --- The others ----------------------------------------------------------------------------------

WorkerSessionCreator::WorkerSessionCreator(const Scope& scope, SessionCreatorOptions options)
    : scope_(scope.WithRootPrefix().WithoutControlDependencies()), options_(std::move(options)) {}

StatusOr<std::shared_ptr<JobSessions>> WorkerSessionCreator::CompleteGraph(int64_t last_step) {
  MR_RETURN_IF_ERROR(scope_.status());
  SessionCreatorOptions options = options_;
  const Scope scope = ScopeAt(scope_, opened_at()).here();
  MR_RETURN_IF_ERROR(TakeDefaults(scope, &options.scaffold));
  JobSessionsOptions of_job = OfJob(options, /*is_chief=*/false, last_step);
  of_job.may_save = false;
  return JobSessions::Make(scope, std::move(of_job));
}

}  // namespace millrace
