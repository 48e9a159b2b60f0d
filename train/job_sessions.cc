// SPDX-License-Identifier: Apache-2.0
#include "train/job_sessions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "layers/variable.h"
#include "proto/meta_graph.pb.h"
#include "proto/saver.pb.h"
#include "run/run_session.h"
#include "saver/tensor_bundle.h"
#include "train/other_model.h"

namespace millrace {
namespace {

// OK when a file can be made in `directory`, which is created.
Status CheckWritable(FileSystem* fs, const std::string& directory) {
  MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(directory));
  const std::string path = JoinPath(directory, absl::StrCat(".writable_", RandomHexName()));
  {
    MR_ASSIGN_OR_RETURN(const auto file, fs->NewExclusiveFile(path));
    MR_RETURN_IF_ERROR(file->Close());
  }
  return fs->DeleteFile(path);
}

// The exit code of a program whose directory cannot be written: only a full disk may be another one
// the next time.
Status WithCodeOfDisk(const Status& status) {
  return absl::IsResourceExhausted(status) ? WithExitCode(status, kExitRetryable) : status;
}

}  // namespace

JobSessions::JobSessions(const Scope& root, JobSessionsOptions options)
    : root_(root), options_(std::move(options)) {}

JobSessions::~JobSessions() = default;

StatusOr<std::shared_ptr<JobSessions>> JobSessions::Make(const Scope& scope,
                                                         JobSessionsOptions options) {
  MR_RETURN_IF_ERROR(scope.status());
  const std::shared_ptr<JobSessions> sessions(
      new JobSessions(scope.WithRootPrefix().WithoutControlDependencies(), std::move(options)));
  MR_RETURN_IF_ERROR(sessions->Complete());
  return sessions;
}

Status JobSessions::Complete() {
  SessionManagerOptions& manager = options_.manager;
  const std::string& directory = manager.checkpoint_dir;
  TrainingRun* const run = &*manager.session.run;
  if (run->empty()) run->name = RunNameOf(directory);
  if (options_.is_chief && directory.empty()) BeginRunWithoutDirectory(run);
  if (options_.is_chief && !directory.empty()) {
    const Status writable = CheckWritable(manager.file_system, directory);
    if (!writable.ok()) {
      return WithCodeOfDisk(Status(
          writable.code(),
          absl::StrCat(manager.name, ": ", options_.directory_option, " '", directory,
                       "' must be a directory that can be written, got ", writable.message())));
    }
    directory_.emplace(manager.file_system, manager.clock, manager.name, directory, run->name);
    sweep_.emplace(manager.file_system, manager.name, directory);
  }
  if (!manager.global_step && root_.collections()->contains("global_step")) {
    manager.global_step = GlobalStep(root_);
  }
  MR_RETURN_IF_ERROR(MakeSaver());
  manager.saver = saver_.get();
  manager_ = std::make_unique<SessionManager>(root_, manager);
  MR_RETURN_IF_ERROR(manager_->status());
  root_.Finalize();
  return absl::OkStatus();
}

Status JobSessions::MakeSaver() {
  // Of what lives as long as the Saver.
  const auto may_save = [this] { return directory_ ? directory_->Check() : absl::OkStatus(); };
  const SessionManagerOptions& manager = options_.manager;
  if (options_.saver != nullptr) {
    saver_ = std::make_unique<GuardedSaver>(manager.name, options_.saver, may_save, manager.clock);
  } else if (options_.may_save && !VariablesOf(root_, "variables").empty()) {
    SaverOptions options = options_.saver_options;
    options.file_system = manager.file_system;
    options.may_commit = [this] { return directory_ ? directory_->MayCommit() : absl::OkStatus(); };
    MR_ASSIGN_OR_RETURN(auto made, Saver::Make(root_, options));
    saver_ = std::make_unique<GuardedSaver>(manager.name, std::move(made), may_save, manager.clock);
  }
  if (saver_ == nullptr) return absl::OkStatus();
  const tensorflow::SaverDef& def = saver_->def();
  const RunSweep::Retention retention = {
      .max_to_keep = def.max_to_keep(),
      .keeps_some_forever =
          def.keep_checkpoint_every_n_hours() < SaverOptions().keep_checkpoint_every_n_hours};
  saver_->Observe(
      {.begins =
           [this, retention](const std::string& path, const std::vector<std::string>& kept) {
             if (sweep_) sweep_->SaveBegins(path, kept, retention);
           },
       .ended =
           [this](const std::string& path, int64_t step, const Status& status) {
             if (sweep_) sweep_->SaveEnded(path, status);
             if (status.ok() && options_.on_saved) options_.on_saved(step, path);
           }});
  return absl::OkStatus();
}

void JobSessions::Sweep(const std::string& in_use) {
  if (!sweep_) return;
  if (directory_->MayCommit().ok()) {
    sweep_->Sweep(in_use);
  } else {
    sweep_->Forget();
  }
}

StatusOr<SessionManager::Ready> JobSessions::Open(const std::string& target) {
  const SessionManagerOptions& manager = options_.manager;
  if (!target.empty() && manager.session.run->empty()) WarnOfNoRun(manager.name, manager.max_wait);
  if (!options_.is_chief) return manager_->WaitForSession(target);
  if (directory_) {
    // Before anything there is changed.
    if (saver_ != nullptr && !is_this_model_) {
      MR_RETURN_IF_ERROR(CheckModelOf({.speaker = manager.name,
                                       .option = options_.directory_option,
                                       .directory = manager.checkpoint_dir},
                                      saver_.get(), manager.file_system));
      is_this_model_ = true;
    }
    const StatusOr<TrainingRun> run = directory_->TakeOver(target);
    if (!run.ok()) return WithCodeOfDisk(run.status());
    manager_->SetRun(*run);
    sweep_->TookOver(*run);
    if (saver_ != nullptr) saver_->SetRunId(run->id);
  }
  StatusOr<SessionManager::Ready> ready = manager_->PrepareSession(target);
  if (!ready.ok()) return ready;
  {
    MutexLock lock(&mu_);
    restored_ = ready->restored_checkpoint;
  }
  // Once the session has its values nothing that is unlisted is needed for them.
  if (!std::exchange(has_swept_, true)) Sweep(ready->restored_checkpoint);
  return ready;
}

int64_t JobSessions::variable_bytes() const {
  int64_t bytes = 0;
  for (const Variable& variable : VariablesOf(root_, "variables")) {
    const int64_t elements = variable.shape.num_elements();
    if (elements > 0) bytes += elements * static_cast<int64_t>(DTypeSize(variable.dtype));
  }
  return bytes;
}

StatusOr<RunTrainers> JobSessions::OtherTrainers(Session* session) const {
  // A server that was restarted knows of nobody; steps find that out.
  MR_RETURN_IF_ERROR(ReadGlobalStep(session).status());
  RunSession* const run = session->run_session();
  if (run == nullptr) return RunTrainers();
  StatusOr<RunTrainers> trainers = run->OtherTrainers();
  if (absl::IsUnimplemented(trainers.status())) return RunTrainers();
  return trainers;
}

int64_t JobSessions::StepInCheckpoint(const std::string& checkpoint) const {
  const std::optional<Variable>& step = options_.manager.global_step;
  if (checkpoint.empty() || !step) return -1;
  const auto reader = BundleReader::Open(options_.manager.file_system, checkpoint);
  if (!reader.ok()) return -1;
  const StatusOr<Tensor> stored = (*reader)->Read(step->name);
  if (!stored.ok() || stored->num_elements() != 1) return -1;
  if (stored->dtype() == DT_INT32) return int64_t{stored->scalar<int32_t>()};
  return stored->dtype() == DT_INT64 ? stored->scalar<int64_t>() : -1;
}

int64_t JobSessions::SettleStep(RunEnd* end) const {
  const int64_t kept = StepInCheckpoint(end->checkpoint);
  // Where the count could not be read (a server is gone), the checkpoint's is known all the same.
  if (end->global_step < 0) end->global_step = kept;
  if (kept < 0 || end->global_step <= kept) return 0;
  const int64_t goal = options_.manager.last_step;
  // One that was restored, where nothing was saved since, is not what was reached.
  const bool is_the_end =
      (saver_ != nullptr && end->checkpoint == saver_->last_saved()) || (goal > 0 && kept >= goal);
  const int64_t lacks = end->global_step - kept;
  LogInfo(options_.manager.name, ": '", end->checkpoint, "' is of step ", kept, " and lacks ",
          lacks, " updates that were counted after it was written");
  if (is_the_end) end->global_step = kept;
  return lacks;
}

Status JobSessions::TellEnd(Session* session, RunEnd end) {
  if (!options_.is_chief || options_.manager.session.run->empty()) return absl::OkStatus();
  if (end.checkpoint.empty() && saver_ != nullptr) end.checkpoint = saver_->last_saved();
  if (end.checkpoint.empty()) {
    MutexLock lock(&mu_);
    end.checkpoint = restored_;
  }
  if (end.global_step < 0) {
    const StatusOr<int64_t> step = ReadGlobalStep(session);
    if (step.ok()) end.global_step = *step;
  }
  const int64_t updates_after_checkpoint = SettleStep(&end);
  Status told;
  if (directory_) {
    told = directory_->End(end, options_.manager.last_step, updates_after_checkpoint);
  }
  RunSession* const run = session->run_session();
  const bool is_ours = directory_ && told.ok();
  if (run != nullptr && !IsFenced(told)) told.Update(run->EndRun(end));
  // Last: nobody waits for it.
  if (is_ours) Sweep(end.checkpoint);
  return told;
}

}  // namespace millrace
