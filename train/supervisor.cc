// SPDX-License-Identifier: Apache-2.0
#include "train/supervisor.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/bounded_call.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "proto/meta_graph.pb.h"
#include "proto/saver.pb.h"
#include "train/run_directory.h"

namespace millrace {
namespace {

constexpr char kName[] = "Supervisor";
// For what should return at once: closing a session, and a save whose session was closed.
constexpr absl::Duration kCloseTime = absl::Seconds(5);
// A save may take so many times as long as the last one before it counts as one that hangs.
constexpr int kSlowerSave = 3;
// A save that fails again and again is said this often.
constexpr absl::Duration kReportPeriod = absl::Seconds(10);
// The longest time between two tries of one save.
constexpr absl::Duration kMaxRetryWait = absl::Minutes(1);

// Marks the NaN guard's errors.
constexpr char kLossNotFinite[] = "loss_not_finite";

// OK when a file can be made in `directory`, which is created.
Status CheckWritable(FileSystem* fs, const std::string& directory) {
  const Status status = [&]() -> Status {
    MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(directory));
    const std::string path = JoinPath(directory, absl::StrCat(".writable_", RandomHexName()));
    {
      MR_ASSIGN_OR_RETURN(const auto file, fs->NewExclusiveFile(path));
      MR_RETURN_IF_ERROR(file->Close());
    }
    return fs->DeleteFile(path);
  }();
  if (status.ok()) return status;
  return Status(status.code(),
                absl::StrCat("Supervisor: logdir '", directory,
                             "' must be a directory that can be written, got ", status.message()));
}

// "run/" and "run" are one run.
std::string RunName(absl::string_view logdir) {
  while (logdir.size() > 1 && absl::ConsumeSuffix(&logdir, "/")) {
  }
  return std::string(logdir);
}

// A save that failed so may succeed with the next try.
bool MayTryAgain(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsCancelled(status) ||
         absl::IsDeadlineExceeded(status) || IsSessionLost(status);
}

// One Saver used by the caller's thread and the service thread. Saves only while `may_save` says
// so.
class SharedSaver : public Saver {
 public:
  SharedSaver(Saver* saver, std::unique_ptr<Saver> owned, std::function<Status()> may_save,
              Clock* clock)
      : owned_(std::move(owned)),
        saver_(owned_ != nullptr ? owned_.get() : saver),
        may_save_(std::move(may_save)),
        clock_(clock) {}

  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> global_step) override {
    MutexLock one_at_a_time(&save_mu_);
    MR_RETURN_IF_ERROR(may_save_());
    const absl::Time begin = clock_->Now();
    StatusOr<std::string> path = saver_->Save(session, prefix, global_step);
    const absl::Duration took = clock_->Now() - begin;
    if (path.ok()) {
      MutexLock lock(&mu_);
      last_saved_ = *path;
      last_took_ = took;
      failure_ = absl::OkStatus();
      return path;
    }
    // A newer chief deletes what is left of the saves of the older ones: why this one failed is
    // that it came, and not which file is gone.
    const Status may_save = may_save_();
    if (IsFenced(may_save)) return may_save;
    return path;
  }
  Status Restore(Session* session, const std::string& checkpoint) override {
    MutexLock one_at_a_time(&save_mu_);
    return saver_->Restore(session, checkpoint);
  }
  Status RecoverLastCheckpoints(const std::vector<std::string>& paths) override {
    MutexLock one_at_a_time(&save_mu_);
    return saver_->RecoverLastCheckpoints(paths);
  }
  std::vector<std::string> last_checkpoints() const override {
    MutexLock one_at_a_time(&save_mu_);
    return saver_->last_checkpoints();
  }
  const tensorflow::SaverDef& def() const override { return saver_->def(); }
  void SetRunId(const std::string& id) override {
    MutexLock one_at_a_time(&save_mu_);
    saver_->SetRunId(id);
  }

  // What this object wrote last; "" when nothing.
  std::string last_saved() const {
    MutexLock lock(&mu_);
    return last_saved_;
  }
  // How long that took; 0 when nothing was written.
  absl::Duration last_took() const {
    MutexLock lock(&mu_);
    return last_took_;
  }
  // Of a save of the service, which nobody else hears of; forgotten with the next one that
  // succeeds.
  void NoteFailure(const Status& status) {
    MutexLock lock(&mu_);
    failure_ = status;
  }
  // Nothing is lost by it any more.
  void ForgetFailure() { NoteFailure(absl::OkStatus()); }
  Status failure() const {
    MutexLock lock(&mu_);
    return failure_;
  }

 private:
  const std::unique_ptr<Saver> owned_;
  Saver* const saver_;
  const std::function<Status()> may_save_;
  Clock* const clock_;
  mutable Mutex save_mu_;  // for as long as a save takes; before mu_
  mutable Mutex mu_;
  std::string last_saved_ ABSL_GUARDED_BY(mu_);
  absl::Duration last_took_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
  Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

// Shared with the threads of calls that may be left behind.
struct Supervisor::Impl : std::enable_shared_from_this<Supervisor::Impl> {
  Impl(const Scope& s, SupervisorOptions o) : scope(s), options(std::move(o)) {}

  void CompleteGraph();
  // Opens the session and makes it ready.
  StatusOr<SessionManager::Ready> Prepare(const std::string& target);
  // Refuses when a stop has been requested: Stop may have gone by already.
  Status StartServices(const SessionManager::Ready& ready);
  // False when the service did not end until `deadline` and its session was closed. A few seconds
  // more, at most, when it does not end then either: it is left behind.
  bool StopServices(absl::Time deadline);
  // `services_ended`: what StopServices returned.
  StatusOr<std::string> SaveLast(bool services_ended, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stop_mu);
  StatusOr<std::string> SaveLastNow(Session* s, int64_t first);
  void Close(std::shared_ptr<Session> s);
  // Tells the parameter servers and the directory that training is over.
  void TellEnd(const std::shared_ptr<Session>& s, const std::string& reason, absl::Time deadline);
  std::string save_path() const { return JoinPath(options.logdir, options.checkpoint_basename); }
  // How long a stop may take: a last save as long as the one before it must not be cut off.
  absl::Duration StopGrace() const {
    return saver == nullptr ? options.stop_grace
                            : std::max(options.stop_grace, kSlowerSave * saver->last_took());
  }
  // The deadline of a stop that begins now.
  absl::Time StopDeadline() const { return options.clock->Now() + StopGrace(); }
  void SaveLoop(Session* s, int64_t service);
  // `asked`: by the program, not by an error of a service or by Stop itself.
  void RequestStop(const Status& reason, bool asked);
  // Why there is no session after a request to stop.
  Status Stopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  Scope scope;
  SupervisorOptions options;
  Status status;  // of completing the graph

  std::optional<RunDirectory> directory;  // of a chief with a logdir
  std::unique_ptr<SharedSaver> saver;
  std::unique_ptr<SessionManager> manager;

  Mutex stop_mu;  // held by who stops, before mu: the others wait for the last checkpoint
  mutable Mutex mu;
  CondVar stop_cv;
  bool should_stop ABSL_GUARDED_BY(mu) = false;
  Status first_error ABSL_GUARDED_BY(mu);
  // The program asked to stop without an error, and why.
  std::optional<std::string> done ABSL_GUARDED_BY(mu);
  int64_t service ABSL_GUARDED_BY(mu) = 0;  // the number of the one that may go on
  std::shared_ptr<BoundedCall> save_call ABSL_GUARDED_BY(mu);
  bool left_behind ABSL_GUARDED_BY(mu) = false;  // a save holds the saver, perhaps for ever
  std::optional<RunEnd> run_end ABSL_GUARDED_BY(mu);
  Start start ABSL_GUARDED_BY(mu) = Start::kInitialized;
  std::string restored ABSL_GUARDED_BY(mu);
  std::shared_ptr<Session> session ABSL_GUARDED_BY(mu);
  int64_t first_step ABSL_GUARDED_BY(mu) = -1;      // the global step that `session` began with
  bool last_save_done ABSL_GUARDED_BY(mu) = false;  // SaveLast was called for `session`
};

void Supervisor::Impl::CompleteGraph() {
  if (!scope.ok()) {
    status = scope.status();
    return;
  }
  TrainingRun* const run = &options.session.run;
  if (run->empty()) run->name = RunName(options.logdir);
  if (options.is_chief && !options.logdir.empty()) {
    status = CheckWritable(options.file_system, options.logdir);
    if (!status.ok()) return;
    directory.emplace(options.file_system, options.clock, kName, options.logdir, run->name);
  }
  const Scope root = scope.WithRootPrefix().WithoutControlDependencies();
  if (!options.global_step && root.collections()->contains("global_step")) {
    options.global_step = GlobalStep(root);
  }
  const auto may_save = [this] { return directory ? directory->Check() : absl::OkStatus(); };
  if (options.saver != nullptr) {
    saver = std::make_unique<SharedSaver>(options.saver, nullptr, may_save, options.clock);
  } else if (!options.logdir.empty() && !VariablesOf(root, "variables").empty()) {
    SaverOptions saver_options;
    saver_options.file_system = options.file_system;
    saver_options.may_commit = [this] {
      return directory ? directory->MayCommit() : absl::OkStatus();
    };
    StatusOr<std::unique_ptr<Saver>> made = Saver::Make(root, saver_options);
    if (!made.ok()) {
      status = made.status();
      return;
    }
    saver = std::make_unique<SharedSaver>(nullptr, *std::move(made), may_save, options.clock);
  }
  manager = std::make_unique<SessionManager>(
      root, SessionManagerOptions{.name = kName,
                                  .ready_op = options.ready_op,
                                  .ready_for_local_init_op = options.ready_for_local_init_op,
                                  .init_op = options.init_op,
                                  .init_feeds = options.init_feeds,
                                  .init_fn = options.init_fn,
                                  .local_init_op = options.local_init_op,
                                  .saver = saver.get(),
                                  .checkpoint_dir = options.logdir,
                                  .begin_from = options.is_chief ? options.begin_from : "",
                                  .global_step = options.global_step,
                                  .last_step = options.last_step,
                                  .recovery_wait = options.recovery_wait,
                                  .end_grace = options.end_grace,
                                  .max_wait = options.max_wait,
                                  .session = options.session,
                                  .clock = options.clock,
                                  .file_system = options.file_system});
  status = manager->status();
  root.Finalize();
}

StatusOr<SessionManager::Ready> Supervisor::Impl::Prepare(const std::string& target) {
  if (!options.is_chief) return manager->WaitForSession(target);
  if (directory) {
    MR_ASSIGN_OR_RETURN(const TrainingRun run, directory->TakeOver(target));
    manager->SetRun(run);
    if (saver != nullptr) saver->SetRunId(run.id);
  }
  return manager->PrepareSession(target);
}

void Supervisor::Impl::RequestStop(const Status& reason, bool asked) {
  MutexLock lock(&mu);
  should_stop = true;
  const bool is_end = reason.ok() || absl::IsOutOfRange(reason);
  if (!is_end) first_error.Update(reason);
  if (is_end && asked && !done) {
    done = reason.ok() ? "training is done" : std::string(reason.message());
  }
  stop_cv.SignalAll();
  if (manager != nullptr) manager->Stop(Stopped());
}

Status Supervisor::Impl::Stopped() const {
  return first_error.ok() ? absl::CancelledError("Supervisor: a stop has been requested")
                          : first_error;
}

Status Supervisor::Impl::StartServices(const SessionManager::Ready& ready) {
  MutexLock lock(&mu);
  if (should_stop) return Stopped();
  session = ready.session;
  start = ready.start;
  restored = ready.restored_checkpoint;
  first_step = ready.global_step;
  last_save_done = false;
  if (options.is_chief && saver != nullptr && !options.logdir.empty() &&
      options.save_model_period > absl::ZeroDuration()) {
    save_call = std::make_shared<BoundedCall>(
        options.clock, [self = shared_from_this(), s = session, number = ++service]() mutable {
          self->SaveLoop(s.get(), number);
          self = nullptr;
        });
  }
  return absl::OkStatus();
}

void Supervisor::Impl::Close(std::shared_ptr<Session> s) {
  BoundedCall closing(options.clock, [s] { s->Close().IgnoreError(); });
  if (closing.WaitUntil(options.clock->Now() + kCloseTime)) return;
  LogWarning("Supervisor: the session did not close within ", absl::FormatDuration(kCloseTime),
             "; what it waits for is left behind");
}

bool Supervisor::Impl::StopServices(absl::Time deadline) {
  std::shared_ptr<Session> blocked;
  std::shared_ptr<BoundedCall> call;
  {
    MutexLock lock(&mu);
    ++service;
    stop_cv.SignalAll();
    if (save_call == nullptr) return !left_behind;
    call = save_call;
    blocked = session;
  }
  const bool ended = call->WaitUntil(deadline);
  bool ended_late = ended;
  if (!ended) {
    LogWarning("Supervisor: the checkpoint service did not end within ",
               absl::FormatDuration(StopGrace()), ", closing its session");
    if (blocked != nullptr) Close(blocked);
    ended_late = call->WaitUntil(options.clock->Now() + kCloseTime);
    if (!ended_late) {
      LogWarning("Supervisor: the checkpoint that is being written to '", options.logdir,
                 "' still waits for its storage; its thread is left behind");
    }
  }
  MutexLock lock(&mu);
  left_behind = left_behind || !ended_late;
  if (save_call == call) save_call = nullptr;
  return ended;
}

StatusOr<std::string> Supervisor::Impl::SaveLast(bool services_ended, absl::Time deadline) {
  if (!options.is_chief || saver == nullptr || options.logdir.empty()) return std::string();
  std::shared_ptr<Session> s;
  int64_t first = 0;
  {
    MutexLock lock(&mu);
    if (session == nullptr) return std::string();
    last_save_done = true;
    s = session;
    first = first_step;
  }
  const auto not_written = [](const Status& why) {
    return Prefixed("Supervisor: last checkpoint not written", why);
  };
  const std::string grace = absl::FormatDuration(StopGrace());
  if (!services_ended) {
    return not_written(absl::DeadlineExceededError(absl::StrCat(
        "the one before it did not end within ", grace, ", and the session was closed")));
  }
  const auto saved = std::make_shared<StatusOr<std::string>>(absl::UnknownError("not ended"));
  BoundedCall call(options.clock, [self = shared_from_this(), s, first, saved]() mutable {
    *saved = self->SaveLastNow(s.get(), first);
    self = nullptr;
  });
  if (!call.WaitUntil(deadline)) {
    MutexLock lock(&mu);
    left_behind = true;
    return not_written(absl::DeadlineExceededError(
        absl::StrCat("it did not end within ", grace, ", and is left behind")));
  }
  if (!saved->ok()) return not_written(saved->status());
  saver->ForgetFailure();
  return **saved;
}

StatusOr<std::string> Supervisor::Impl::SaveLastNow(Session* s, int64_t first) {
  MR_ASSIGN_OR_RETURN(const int64_t step, manager->ReadGlobalStep(s));
  // A step that does not count tells nothing about the variables: a loop may train without it.
  const std::string last = saver->last_saved();
  if (step > first && step >= 0 && last == absl::StrCat(save_path(), "-", step)) return last;
  MR_ASSIGN_OR_RETURN(
      const std::string path,
      saver->Save(s, save_path(), step >= 0 ? std::optional<int64_t>(step) : std::nullopt));
  LogInfo("Supervisor: saved ", path, step >= 0 ? absl::StrCat(" at global step ", step) : "");
  return path;
}

void Supervisor::Impl::TellEnd(const std::shared_ptr<Session>& s, const std::string& reason,
                               absl::Time deadline) {
  std::string checkpoint = saver != nullptr ? saver->last_saved() : "";
  if (checkpoint.empty()) {
    MutexLock lock(&mu);
    checkpoint = restored;
  }
  BoundedCall call(options.clock, [self = shared_from_this(), s, reason, checkpoint] {
    RunEnd end = {.checkpoint = checkpoint, .reason = reason};
    const StatusOr<int64_t> step = self->manager->ReadGlobalStep(s.get());
    if (step.ok()) end.global_step = *step;
    // The directory first: it is what remains.
    Status told;
    if (self->directory) told = self->directory->End(end, self->options.last_step);
    if (!IsFenced(told)) told.Update(s->EndRun(end));
    if (!told.ok())
      LogWarning("Supervisor: the end of training was not told to all: ", told.message());
  });
  if (!call.WaitUntil(deadline)) {
    LogWarning("Supervisor: the end of training was not told to all in time");
  }
}

// The first checkpoint is written at once, so that a job that dies early loses nothing it started
// from. One that fails although the next may succeed is tried again soon, and ever more rarely;
// the others keep their times.
void Supervisor::Impl::SaveLoop(Session* s, int64_t number) {
  Clock* const clock = options.clock;
  absl::Time due = clock->Now();  // of the save that is next by the period
  absl::Time next = due;
  absl::Time next_report = absl::InfinitePast();
  const absl::Duration first_wait = std::max(options.recovery_wait, absl::Milliseconds(1));
  absl::Duration wait = first_wait;
  while (true) {
    {
      MutexLock lock(&mu);
      while (service == number && clock->Now() < next) {
        clock->WaitUntil(&stop_cv, &mu, next);
      }
      if (service != number) return;
    }
    const StatusOr<int64_t> step = manager->ReadGlobalStep(s);
    Status saved = step.status();
    if (saved.ok()) {
      saved = saver->Save(s, save_path(), *step >= 0 ? std::optional<int64_t>(*step) : std::nullopt)
                  .status();
    }
    const absl::Time now = clock->Now();
    while (due <= now && saved.ok()) due += options.save_model_period;
    if (saved.ok()) {
      next = due;
      wait = first_wait;
      continue;
    }
    const Status failure = Prefixed("Supervisor: checkpoint not written", saved);
    {
      MutexLock lock(&mu);
      if (service != number) return;  // whoever stops it closes its session, too
    }
    saver->NoteFailure(failure);
    if (!MayTryAgain(saved)) {
      RequestStop(failure, /*asked=*/false);
      return;
    }
    if (now >= next_report) {
      LogWarning(failure.message(), "; it is tried again");
      next_report = now + kReportPeriod;
    }
    next = now + wait;
    wait = std::min(2 * wait, kMaxRetryWait);
  }
}

Supervisor::Supervisor(const Scope& scope, SupervisorOptions options)
    : impl_(std::make_shared<Impl>(scope, std::move(options))) {
  impl_->CompleteGraph();
}

Supervisor::~Supervisor() {
  {
    MutexLock lock(&impl_->mu);
    impl_->last_save_done = true;
    impl_->done.reset();
  }
  Stop().IgnoreError();
}

StatusOr<std::shared_ptr<Session>> Supervisor::ManagedSession(const std::string& target) {
  MR_RETURN_IF_ERROR(impl_->status);
  impl_->StopServices(impl_->StopDeadline());
  std::shared_ptr<Session> former;
  {
    MutexLock lock(&impl_->mu);
    if (impl_->should_stop) return impl_->Stopped();  // Stop closes the session.
    if (impl_->left_behind) {
      return WithExitCode(
          absl::DeadlineExceededError(absl::StrCat(
              "Supervisor: the storage of '", impl_->options.logdir,
              "' must answer before training goes on, got a save that still waits for it after ",
              absl::FormatDuration(impl_->StopGrace()))),
          kExitRetryable);
    }
    former = std::move(impl_->session);
    impl_->session = nullptr;
  }
  if (former != nullptr) impl_->Close(std::move(former));
  StatusOr<SessionManager::Ready> ready = impl_->Prepare(target);
  if (const std::optional<RunEnd> end = RunEndOf(ready.status())) {
    impl_->RequestStop(absl::OkStatus(), /*asked=*/false);
    MutexLock lock(&impl_->mu);
    impl_->run_end = end;
  }
  MR_RETURN_IF_ERROR(ready.status());
  const Status started = impl_->StartServices(*ready);
  if (!started.ok()) {
    impl_->Close(ready->session);
    return started;
  }
  return ready->session;
}

Supervisor::Start Supervisor::start() const {
  MutexLock lock(&impl_->mu);
  return impl_->start;
}

std::string Supervisor::restored_checkpoint() const {
  MutexLock lock(&impl_->mu);
  return impl_->restored;
}

int64_t Supervisor::first_step() const {
  MutexLock lock(&impl_->mu);
  return impl_->first_step;
}

std::optional<RunEnd> Supervisor::run_end() const {
  MutexLock lock(&impl_->mu);
  return impl_->run_end;
}

bool Supervisor::ShouldStop() const {
  MutexLock lock(&impl_->mu);
  return impl_->should_stop;
}

void Supervisor::RequestStop(const Status& reason) { impl_->RequestStop(reason, /*asked=*/true); }

void Supervisor::NothingToSave() {
  if (impl_->saver != nullptr) impl_->saver->ForgetFailure();
  MutexLock lock(&impl_->mu);
  impl_->last_save_done = true;
}

Status Supervisor::Stop() {
  impl_->RequestStop(absl::OkStatus(), /*asked=*/false);
  MutexLock stopping(&impl_->stop_mu);
  const absl::Time deadline = impl_->StopDeadline();
  const bool services_ended = impl_->StopServices(deadline);
  bool save = false;
  {
    MutexLock lock(&impl_->mu);
    const Status& error = impl_->first_error;
    save = !impl_->last_save_done && !IsSessionLost(error) && !IsLossNotFinite(error) &&
           !IsFenced(error);
  }
  Status saved;
  if (save) {
    saved = impl_->SaveLast(services_ended, deadline).status();
    if (!saved.ok()) LogWarning(saved.message());
  }
  std::shared_ptr<Session> session;
  std::optional<std::string> done;
  Status error;
  {
    MutexLock lock(&impl_->mu);
    session = std::move(impl_->session);
    impl_->session = nullptr;
    impl_->first_error.Update(saved);
    // A save that the service could not make, and nobody since.
    if (impl_->saver != nullptr) impl_->first_error.Update(impl_->saver->failure());
    error = impl_->first_error;
    done = impl_->done;
  }
  if (session == nullptr) return error;
  const SupervisorOptions& options = impl_->options;
  if (error.ok() && done && options.is_chief && !options.session.run.empty()) {
    // A small file and a call, also when the last checkpoint took all the time.
    impl_->TellEnd(session, *done, std::max(deadline, options.clock->Now() + kCloseTime));
  }
  // What is still blocked in the session ends with it; its own errors do not matter any more.
  impl_->Close(std::move(session));
  return error;
}

StatusOr<std::string> Supervisor::SaveLast() {
  MutexLock stopping(&impl_->stop_mu);
  const absl::Time deadline = impl_->StopDeadline();
  return impl_->SaveLast(impl_->StopServices(deadline), deadline);
}

Saver* Supervisor::saver() const { return impl_->saver.get(); }

std::string Supervisor::save_path() const { return impl_->save_path(); }

Status Supervisor::status() const { return impl_->status; }

namespace {

// OK, said in one line, when `status` says that the run has ended: nothing is left to do.
Status EndedWell(const Status& status) {
  const std::optional<RunEnd> end = RunEndOf(status);
  if (!end) return status;
  LogInfo(status.message());
  return absl::OkStatus();
}

}  // namespace

Status RunWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                       absl::FunctionRef<Status(Session*)> body) {
  int64_t furthest = -1;  // the global step that a session began with
  int recoveries = 0;     // since then
  while (true) {
    const StatusOr<std::shared_ptr<Session>> session = supervisor->ManagedSession(target);
    if (!session.ok()) return EndedWell(session.status());
    if (supervisor->first_step() > furthest) {
      furthest = supervisor->first_step();
      recoveries = 0;
    }
    const Status status = body(session->get());
    if (!IsSessionLost(status)) return EndedWell(status);
    if (recoveries >= max_recoveries) {
      return Suffixed(status, absl::StrCat("; gave up after ", recoveries, " new sessions"));
    }
    ++recoveries;
    LogWarning("The session was lost, making a new one: ", status.message());
  }
}

Status RunStepsWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                            absl::FunctionRef<Status(Session*)> begin,
                            absl::FunctionRef<StatusOr<bool>(Session*)> step) {
  return RunWithRecovery(supervisor, target, max_recoveries, [&](Session* session) -> Status {
    MR_RETURN_IF_ERROR(begin(session));
    while (!supervisor->ShouldStop()) {
      MR_ASSIGN_OR_RETURN(const bool more, step(session));
      if (!more) break;
    }
    return absl::OkStatus();
  });
}

Status CheckLossIsFinite(const Tensor& loss, int64_t step, const Staleness& staleness) {
  double bad = 0;  // the first element that is not finite
  const auto scan = [&bad](const auto values) {
    for (const auto v : values) {
      if (std::isfinite(v)) continue;
      bad = static_cast<double>(v);
      return;
    }
  };
  switch (loss.dtype()) {
    case DT_FLOAT:
      scan(loss.flat<float>());
      break;
    case DT_DOUBLE:
      scan(loss.flat<double>());
      break;
    default:
      return InvalidArgument("NaN guard: the loss must be float or double, got ",
                             DTypeName(loss.dtype()));
  }
  if (std::isfinite(bad)) return absl::OkStatus();
  const std::string hint =
      staleness.max <= 0 ? std::string("lower the learning rate or look for bad input")
                         : absl::StrFormat(
                               "this task's gradients were stale by %.1f updates of other tasks on "
                               "average, %d at most: lower the learning rate, train with fewer "
                               "workers or update synchronously, or look for bad input",
                               staleness.mean, staleness.max);
  Status status = InvalidArgument("NaN guard: the loss must be finite, got ",
                                  std::isnan(bad) ? "nan" : (bad > 0 ? "inf" : "-inf"),
                                  " at global step ", step, "; ", hint);
  status.SetPayload(kLossNotFinite, absl::Cord());
  return status;
}

bool IsLossNotFinite(const Status& status) { return status.GetPayload(kLossNotFinite).has_value(); }

}  // namespace millrace
