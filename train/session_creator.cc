// SPDX-License-Identifier: Apache-2.0
#include "train/session_creator.h"

#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "core/logging.h"
#include "graph/graph.h"
#include "proto/meta_graph.pb.h"
#include "run/run_directory.h"
#include "run/run_session.h"
#include "run/training_run.h"
#include "train/guarded_saver.h"

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

std::optional<Variable> GlobalStepOf(const Scope& root, const SessionCreatorOptions& options) {
  if (options.global_step || !root.collections()->contains("global_step")) {
    return options.global_step;
  }
  return GlobalStep(root);
}

SessionManagerOptions ManagerOptions(const Scope& root, const SessionCreatorOptions& options,
                                     int64_t last_step) {
  const Scaffold& scaffold = options.scaffold;
  return {.name = kName,
          .ready_op = scaffold.ready_op,
          .ready_for_local_init_op = scaffold.ready_for_local_init_op,
          .init_op = scaffold.init_op,
          .init_feeds = scaffold.init_feeds,
          .init_fn = scaffold.init_fn,
          .local_init_op = scaffold.local_init_op,
          .checkpoint_dir = options.checkpoint_dir,
          .global_step = GlobalStepOf(root, options),
          .last_step = last_step,
          .recovery_wait = options.recovery_wait,
          .end_grace = options.end_grace,
          .max_wait = options.max_wait,
          .session = options.session,
          .clock = options.clock,
          .file_system = options.file_system};
}

}  // namespace

void SessionCreator::Stop(const Status&) {}
StatusOr<std::string> SessionCreator::SaveBeside(Session*) { return std::string(); }
StatusOr<RunTrainers> SessionCreator::OtherTrainers(Session*) { return RunTrainers(); }
Status SessionCreator::TellEnd(Session*, const RunEnd&) { return absl::OkStatus(); }

// --- The chief -----------------------------------------------------------------------------------

struct ChiefSessionCreator::Impl {
  Impl(const Scope& s, SessionCreatorOptions o)
      : scope(s.WithRootPrefix().WithoutControlDependencies()), options(std::move(o)) {}

  const Scope scope;
  SessionCreatorOptions options;
  std::optional<RunDirectory> directory;
  std::unique_ptr<GuardedSaver> saver;
  std::unique_ptr<SessionManager> manager;
  int64_t last_step = 0;
  std::string restored;  // of the last session
};

ChiefSessionCreator::ChiefSessionCreator(const Scope& scope, SessionCreatorOptions options)
    : impl_(std::make_shared<Impl>(scope, std::move(options))) {}

ChiefSessionCreator::~ChiefSessionCreator() = default;

Status ChiefSessionCreator::CompleteGraph(int64_t last_step) {
  const Scope& root = impl_->scope;
  SessionCreatorOptions& options = impl_->options;
  MR_RETURN_IF_ERROR(root.status());
  if (!options.checkpoint_path.empty() &&
      !(options.checkpoint_dir.empty() && options.begin_from.empty())) {
    return InvalidArgument(
        kName,
        ": checkpoint_path must come without checkpoint_dir and "
        "begin_from, got '",
        options.checkpoint_path, "' and '",
        options.checkpoint_dir.empty() ? options.begin_from : options.checkpoint_dir, "'");
  }
  MR_RETURN_IF_ERROR(TakeDefaults(root, &options.scaffold));
  TrainingRun* const run = &*options.session.run;
  if (run->empty()) run->name = RunNameOf(options.checkpoint_dir);
  if (options.checkpoint_dir.empty()) BeginRunWithoutDirectory(run);
  if (!options.checkpoint_dir.empty()) {
    MR_RETURN_IF_ERROR(
        Prefixed(kName, options.file_system->RecursivelyCreateDirectory(options.checkpoint_dir)));
    impl_->directory.emplace(options.file_system, options.clock, kName, options.checkpoint_dir,
                             run->name);
  }
  // Of what lives as long as the Saver.
  const auto may_save = [impl = impl_.get()] {
    return impl->directory ? impl->directory->Check() : absl::OkStatus();
  };
  if (options.scaffold.saver != nullptr) {
    impl_->saver = std::make_unique<GuardedSaver>(kName, options.scaffold.saver, may_save);
  } else if (!VariablesOf(root, "variables").empty()) {
    SaverOptions saver_options = options.saver;
    saver_options.file_system = options.file_system;
    saver_options.may_commit = [impl = impl_.get()] {
      return impl->directory ? impl->directory->MayCommit() : absl::OkStatus();
    };
    MR_ASSIGN_OR_RETURN(auto made, Saver::Make(root, saver_options));
    impl_->saver = std::make_unique<GuardedSaver>(kName, std::move(made), may_save);
  }
  SessionManagerOptions manager = ManagerOptions(root, options, last_step);
  manager.saver = impl_->saver.get();
  manager.begin_from =
      options.checkpoint_path.empty() ? options.begin_from : options.checkpoint_path;
  impl_->manager = std::make_unique<SessionManager>(root, std::move(manager));
  impl_->last_step = last_step;
  MR_RETURN_IF_ERROR(impl_->manager->status());
  root.Finalize();
  return absl::OkStatus();
}

StatusOr<SessionManager::Ready> ChiefSessionCreator::CreateSession() {
  const SessionCreatorOptions& options = impl_->options;
  if (!options.target.empty() && options.session.run->empty()) WarnOfNoRun(kName, options.max_wait);
  if (impl_->directory) {
    MR_ASSIGN_OR_RETURN(const TrainingRun run, impl_->directory->TakeOver(impl_->options.target));
    impl_->manager->SetRun(run);
    if (impl_->saver != nullptr) impl_->saver->SetRunId(run.id);
  }
  MR_ASSIGN_OR_RETURN(SessionManager::Ready ready,
                      impl_->manager->PrepareSession(impl_->options.target));
  impl_->restored = ready.restored_checkpoint;
  return ready;
}

void ChiefSessionCreator::Stop(const Status& reason) { impl_->manager->Stop(reason); }

std::shared_ptr<Session> ChiefSessionCreator::session() const { return impl_->manager->session(); }

StatusOr<std::string> ChiefSessionCreator::SaveBeside(Session* session) {
  if (impl_->saver == nullptr) return std::string();
  const std::string last = impl_->saver->last_saved();
  const size_t dash = last.rfind('-');
  if (dash == std::string::npos) return std::string();
  MR_ASSIGN_OR_RETURN(const int64_t step, impl_->manager->ReadGlobalStep(session));
  const std::string prefix = last.substr(0, dash);
  if (step < 0 || last == absl::StrCat(prefix, "-", step)) return last;
  return impl_->saver->Save(session, prefix, step);
}

StatusOr<RunTrainers> ChiefSessionCreator::OtherTrainers(Session* session) {
  // A server that was restarted knows of nobody; steps find that out.
  MR_RETURN_IF_ERROR(impl_->manager->ReadGlobalStep(session).status());
  RunSession* const run = session->run_session();
  if (run == nullptr) return RunTrainers();
  StatusOr<RunTrainers> trainers = run->OtherTrainers();
  if (absl::IsUnimplemented(trainers.status())) return RunTrainers();
  return trainers;
}

std::shared_ptr<Saver> ChiefSessionCreator::saver() const {
  return std::shared_ptr<Saver>(impl_, impl_->saver.get());
}

Status ChiefSessionCreator::TellEnd(Session* session, const RunEnd& end) {
  RunEnd told = end;
  if (told.checkpoint.empty() && impl_->saver != nullptr) {
    told.checkpoint = impl_->saver->last_saved();
  }
  if (told.checkpoint.empty()) told.checkpoint = impl_->restored;
  if (told.global_step < 0) {
    const StatusOr<int64_t> step = impl_->manager->ReadGlobalStep(session);
    if (step.ok()) told.global_step = *step;
  }
  // The directory first: it is what remains.
  if (impl_->directory) MR_RETURN_IF_ERROR(impl_->directory->End(told, impl_->last_step));
  RunSession* const run = session->run_session();
  return run == nullptr ? absl::OkStatus() : run->EndRun(told);
}

// --- The others ----------------------------------------------------------------------------------

WorkerSessionCreator::WorkerSessionCreator(const Scope& scope, SessionCreatorOptions options)
    : scope_(scope.WithRootPrefix().WithoutControlDependencies()), options_(std::move(options)) {}

WorkerSessionCreator::~WorkerSessionCreator() = default;

Status WorkerSessionCreator::CompleteGraph(int64_t last_step) {
  MR_RETURN_IF_ERROR(scope_.status());
  SessionCreatorOptions options = options_;
  MR_RETURN_IF_ERROR(TakeDefaults(scope_, &options.scaffold));
  TrainingRun* const run = &*options.session.run;
  if (run->empty()) run->name = RunNameOf(options.checkpoint_dir);
  manager_ = std::make_unique<SessionManager>(scope_, ManagerOptions(scope_, options, last_step));
  MR_RETURN_IF_ERROR(manager_->status());
  scope_.Finalize();
  return absl::OkStatus();
}

StatusOr<SessionManager::Ready> WorkerSessionCreator::CreateSession() {
  if (!options_.target.empty() && options_.checkpoint_dir.empty() &&
      options_.session.run->empty()) {
    WarnOfNoRun(kName, options_.max_wait);
  }
  return manager_->WaitForSession(options_.target);
}

void WorkerSessionCreator::Stop(const Status& reason) { manager_->Stop(reason); }

std::shared_ptr<Session> WorkerSessionCreator::session() const { return manager_->session(); }

}  // namespace millrace
