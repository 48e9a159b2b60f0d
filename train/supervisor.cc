// SPDX-License-Identifier: Apache-2.0
#include "train/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/bounded_call.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "proto/meta_graph.pb.h"
#include "proto/saver.pb.h"
#include "train/run_directory.h"
#include "train/signal_watch.h"

namespace millrace {
namespace {

constexpr char kName[] = "Supervisor";
// For what should return at once: closing a session, and a save whose session was closed.
constexpr absl::Duration kCloseTime = absl::Seconds(5);
// A save may take so many times as long as the last one before it counts as one that hangs.
constexpr int kSlowerSave = 3;
// Who waits says so this often.
constexpr absl::Duration kReportPeriod = absl::Seconds(10);
// The longest time between two tries of one save.
constexpr absl::Duration kMaxRetryWait = absl::Minutes(1);
// After a signal: how long the step that runs may take to end; of a chief, which part of
// stop_grace.
constexpr absl::Duration kStepTime = absl::Seconds(1);
constexpr int kStepPart = 2;
// Others may have got the same signal in the same moment. A chief waits until they count no more,
// so long at most, and such a part of stop_grace; they do not when the global step has stayed for
// the second time.
constexpr absl::Duration kOthersTime = absl::Seconds(1);
constexpr int kOthersPart = 4;
constexpr absl::Duration kStillTime = absl::Milliseconds(250);
constexpr int kLooksAtOthers = 4;  // in it
// Last checkpoints after a signal, while others count on as one is written.
constexpr int kLastSaves = 3;

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

// May a save that failed so succeed with the next try? Not where another chief has the run or the
// run has ended, nor what can never work.
bool MayTryAgain(const Status& status) {
  return !IsFenced(status) && !RunEndOf(status).has_value() && !absl::IsInvalidArgument(status) &&
         !absl::IsUnimplemented(status);
}

// That of a program that ends with it: it may be started again, and adopts what others hold.
Status WithCodeOfSave(const Status& status) {
  return MayTryAgain(status) ? WithExitCode(status, kExitRetryable) : status;
}

// The same where no save has been tried yet: only a full disk may be another one the next time.
Status WithCodeOfDisk(const Status& status) {
  return absl::IsResourceExhausted(status) ? WithExitCode(status, kExitRetryable) : status;
}

// For the log: other tasks' errors have several.
std::string OneLine(const Status& status) {
  return absl::StrReplaceAll(status.message(), {{"\n", " "}});
}

// What the variables of the graph have, as far as their shapes say.
int64_t BytesOf(const std::vector<Variable>& variables) {
  int64_t bytes = 0;
  for (const Variable& variable : variables) {
    const int64_t elements = variable.shape.num_elements();
    if (elements > 0) bytes += elements * static_cast<int64_t>(DTypeSize(variable.dtype));
  }
  return bytes;
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
    StatusOr<std::string> path = SaveAloud(session, prefix, global_step);
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
  // Storage may hang: says every 10 s that it waits, by the real clock.
  StatusOr<std::string> SaveAloud(Session* session, const std::string& prefix,
                                  std::optional<int64_t> global_step) {
    StatusOr<std::string> path = absl::UnknownError("not ended");
    const auto save = [&] { path = saver_->Save(session, prefix, global_step); };
    std::optional<BoundedCall> call;
    try {
      call.emplace(Clock::Real(), save);
    } catch (const std::system_error&) {  // no thread is left
      save();
      return path;
    }
    const absl::Time begin = absl::Now();
    while (!call->WaitUntil(absl::Now() + kReportPeriod)) {
      LogInfo("Supervisor: waits for the checkpoint '", prefix,
              global_step ? absl::StrCat("-", *global_step) : "",
              "', which is being written since ",
              absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Seconds(1))));
    }
    return path;
  }

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
  // Whether `call` has ended by `deadline`. Says every 10 s that it waits, for `what`.
  bool Await(BoundedCall* call, absl::Time deadline, absl::string_view what);
  // False when the service did not end until `deadline` and its session was closed. A few seconds
  // more, at most, when it does not end then either: it is left behind.
  bool StopServices(absl::Time deadline);
  // `services_ended`: what StopServices returned.
  StatusOr<std::string> SaveLast(bool services_ended, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stop_mu);
  StatusOr<std::string> SaveLastNow(Session* s, int64_t first, absl::Time deadline);
  StatusOr<std::string> SaveLastStep(Session* s, int64_t first, int64_t step);
  // Waits until the global step stays, for a part of what is left of the time.
  void AwaitOthers(Session* s, absl::Time deadline);
  bool NeedsLastSave() const;
  // All that Stop does but for the watch of signals.
  Status End();
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
  void StartService() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void SaveLoop(Session* s, int64_t service);
  // A save of `path` failed with `saved`, which another try may mend: said, kept for Stop, and the
  // next try is due after a pause.
  void SaveFailed(const std::string& path, const Status& saved);
  std::string PathOfStep(int64_t step) const {
    return step >= 0 ? absl::StrCat(save_path(), "-", step) : save_path();
  }
  bool keeps_checkpoints() const {
    return options.is_chief && saver != nullptr && !options.logdir.empty();
  }
  // Signals are looked at from now on.
  void WatchSignals();
  void OnSignal(int number);
  // Its request to stop; once.
  void NoteSignal(int number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // `asked`: by the program, not by an error of a service or by Stop itself.
  void RequestStop(const Status& reason, bool asked) {
    MutexLock lock(&mu);
    RequestStopLocked(reason, asked);
  }
  void RequestStopLocked(const Status& reason, bool asked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Why there is no session after a request to stop.
  Status Stopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  Scope scope;
  SupervisorOptions options;
  Status status;  // of completing the graph

  std::optional<RunDirectory> directory;  // of a chief with a logdir
  std::unique_ptr<SharedSaver> saver;
  std::unique_ptr<SessionManager> manager;
  int64_t variable_bytes = 0;  // of a checkpoint, for people

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
  std::string target ABSL_GUARDED_BY(mu);           // of `session`
  // Of a save that failed: when it is tried again, and the pause after that.
  absl::Time retry_at ABSL_GUARDED_BY(mu) = absl::InfiniteFuture();
  absl::Duration retry_wait ABSL_GUARDED_BY(mu) = absl::ZeroDuration();

  // No signal -> signal -> the program stops, or does not and OnSignal ends its session.
  std::unique_ptr<SignalWatch> watch ABSL_GUARDED_BY(mu);
  int signal ABSL_GUARDED_BY(mu) = 0;
  bool stop_begun ABSL_GUARDED_BY(mu) = false;
  // What OnSignal's last checkpoint came to; "": there is none.
  StatusOr<std::string> saved_beside ABSL_GUARDED_BY(mu) = std::string();
};

void Supervisor::Impl::CompleteGraph() {
  if (!scope.ok()) {
    status = scope.status();
    return;
  }
  TrainingRun* const run = &options.session.run;
  if (run->empty()) run->name = RunName(options.logdir);
  if (options.is_chief && !options.logdir.empty()) {
    status = WithCodeOfDisk(CheckWritable(options.file_system, options.logdir));
    if (!status.ok()) return;
    directory.emplace(options.file_system, options.clock, kName, options.logdir, run->name);
  }
  const Scope root = scope.WithRootPrefix().WithoutControlDependencies();
  if (!options.global_step && root.collections()->contains("global_step")) {
    options.global_step = GlobalStep(root);
  }
  variable_bytes = BytesOf(VariablesOf(root, "variables"));
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
    const StatusOr<TrainingRun> run = directory->TakeOver(target);
    if (!run.ok()) return WithCodeOfDisk(run.status());
    manager->SetRun(*run);
    if (saver != nullptr) saver->SetRunId(run->id);
  }
  return manager->PrepareSession(target);
}

void Supervisor::Impl::RequestStopLocked(const Status& reason, bool asked) {
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
  const bool by_time = options.save_model_period > absl::ZeroDuration();
  // A save of the session before that is still to be made.
  const bool is_pending = retry_at != absl::InfiniteFuture();
  retry_at = is_pending && !by_time ? options.clock->Now() : absl::InfiniteFuture();
  retry_wait = absl::ZeroDuration();
  if (keeps_checkpoints() && (by_time || is_pending)) StartService();
  return absl::OkStatus();
}

void Supervisor::Impl::StartService() {
  save_call = std::make_shared<BoundedCall>(
      options.clock, [self = shared_from_this(), s = session, number = ++service]() mutable {
        self->SaveLoop(s.get(), number);
        self = nullptr;
      });
}

void Supervisor::Impl::Close(std::shared_ptr<Session> s) {
  BoundedCall closing(options.clock, [s] { s->Close().IgnoreError(); });
  if (closing.WaitUntil(options.clock->Now() + kCloseTime)) return;
  LogWarning("Supervisor: the session did not close within ", absl::FormatDuration(kCloseTime),
             "; what it waits for is left behind");
}

bool Supervisor::Impl::Await(BoundedCall* call, absl::Time deadline, absl::string_view what) {
  const absl::Time begin = options.clock->Now();
  while (true) {
    const absl::Time look = std::min(deadline, options.clock->Now() + kReportPeriod);
    if (call->WaitUntil(look)) return true;
    const absl::Time now = options.clock->Now();
    if (now >= deadline) return false;
    LogInfo("Supervisor: waits for ", what, " since ", absl::FormatDuration(now - begin),
            ", and for ", absl::FormatDuration(deadline - now), " more at most");
  }
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
  const bool ended =
      Await(call.get(), deadline,
            absl::StrCat("the checkpoint that is being written to '", options.logdir, "'"));
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
  if (!keeps_checkpoints()) return std::string();
  std::shared_ptr<Session> s;
  int64_t first = 0;
  {
    MutexLock lock(&mu);
    if (session == nullptr) return saved_beside;
    last_save_done = true;
    s = session;
    first = first_step;
  }
  const auto not_written = [](const Status& why) {
    return WithCodeOfSave(Prefixed("Supervisor: last checkpoint not written", why));
  };
  const std::string grace = absl::FormatDuration(StopGrace());
  if (!services_ended) {
    return not_written(absl::DeadlineExceededError(absl::StrCat(
        "the one before it did not end within ", grace, ", and the session was closed")));
  }
  const auto saved = std::make_shared<StatusOr<std::string>>(absl::UnknownError("not ended"));
  BoundedCall call(options.clock, [self = shared_from_this(), s, first, deadline, saved]() mutable {
    *saved = self->SaveLastNow(s.get(), first, deadline);
    self = nullptr;
  });
  if (!Await(&call, deadline, absl::StrCat("the last checkpoint in '", options.logdir, "'"))) {
    MutexLock lock(&mu);
    left_behind = true;
    return not_written(absl::DeadlineExceededError(
        absl::StrCat("it did not end within ", grace, ", and is left behind")));
  }
  if (!saved->ok()) return not_written(saved->status());
  saver->ForgetFailure();
  return **saved;
}

StatusOr<std::string> Supervisor::Impl::SaveLastNow(Session* s, int64_t first,
                                                    absl::Time deadline) {
  Clock* const clock = options.clock;
  bool with_others = false;  // who may have been asked to end, too
  {
    MutexLock lock(&mu);
    with_others = signal != 0 && !target.empty();
  }
  if (with_others) AwaitOthers(s, deadline);
  absl::Duration wait = std::max(options.recovery_wait, absl::Milliseconds(1));
  std::string written;  // by now; what others have counted since may not be in it
  int64_t step = -1;
  for (int saves = 0; saves < kLastSaves;) {
    const absl::Time begin = clock->Now();
    const StatusOr<int64_t> now = manager->ReadGlobalStep(s);
    if (!written.empty() && (!now.ok() || *now == step)) return written;
    MR_ASSIGN_OR_RETURN(step, now);
    const StatusOr<std::string> path = SaveLastStep(s, first, step);
    if (path.ok()) {
      if (!with_others) return path;
      written = *path;
      ++saves;
      continue;
    }
    if (!written.empty() && MayTryAgain(path.status())) {
      LogWarning("Supervisor: '", written, "' is the last checkpoint, without what was counted ",
                 "since: ", OneLine(path.status()));
      return written;
    }
    const Status& failed = path.status();
    // There may be space in a moment; a session that is gone does not come again.
    const absl::Time next = clock->Now() + wait;
    if (!MayTryAgain(failed) || IsSessionLost(failed) || absl::IsCancelled(failed) ||
        next + (clock->Now() - begin) >= deadline) {
      return failed;
    }
    LogWarning("Supervisor: last checkpoint not written: ", OneLine(failed), "; '",
               PathOfStep(step), "' has ", variable_bytes,
               " bytes of variables, and is tried again in ", absl::FormatDuration(wait));
    wait = std::min(2 * wait, kMaxRetryWait);
    MutexLock lock(&mu);
    while (clock->Now() < next) clock->WaitUntil(&stop_cv, &mu, next);
  }
  return written;
}

StatusOr<std::string> Supervisor::Impl::SaveLastStep(Session* s, int64_t first, int64_t step) {
  // A step that does not count tells nothing about the variables: a loop may train without it.
  const std::string last = saver->last_saved();
  if (step > first && step >= 0 && last == PathOfStep(step)) return last;
  MR_ASSIGN_OR_RETURN(
      const std::string path,
      saver->Save(s, save_path(), step >= 0 ? std::optional<int64_t>(step) : std::nullopt));
  LogInfo("Supervisor: saved ", path, step >= 0 ? absl::StrCat(" at global step ", step) : "");
  return path;
}

void Supervisor::Impl::AwaitOthers(Session* s, absl::Time deadline) {
  const absl::Time begin = options.clock->Now();
  const absl::Duration at_most = std::min(kOthersTime, (deadline - begin) / kOthersPart);
  absl::Time since = begin;  // the step has stayed
  int64_t last = -1;
  while (true) {
    const StatusOr<int64_t> step = manager->ReadGlobalStep(s);
    const absl::Time now = options.clock->Now();
    if (!step.ok() || *step < 0 || now >= begin + at_most) return;
    if (*step != last) since = now;
    last = *step;
    if (now >= since + kStillTime) return;
    options.clock->SleepFor(kStillTime / kLooksAtOthers);
  }
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
  if (!Await(&call, deadline, "the parameter servers and the directory to hear of the end")) {
    LogWarning("Supervisor: the end of training was not told to all in time");
  }
}

// The first checkpoint is written at once, so that a job that dies early loses nothing it started
// from. One that fails is tried again soon, and ever more rarely; the others keep their times.
void Supervisor::Impl::SaveLoop(Session* s, int64_t number) {
  Clock* const clock = options.clock;
  const absl::Duration period = options.save_model_period;
  // Of the save that is next by the period.
  absl::Time due = period > absl::ZeroDuration() ? clock->Now() : absl::InfiniteFuture();
  while (true) {
    {
      MutexLock lock(&mu);
      while (service == number) {
        const absl::Time next = retry_at != absl::InfiniteFuture() ? retry_at : due;
        if (clock->Now() >= next) break;
        clock->WaitUntil(&stop_cv, &mu, next);
      }
      if (service != number) return;
      retry_at = absl::InfiniteFuture();
    }
    // Somebody else has saved meanwhile.
    if (clock->Now() < due && saver->failure().ok()) continue;
    const StatusOr<int64_t> step = manager->ReadGlobalStep(s);
    Status saved = step.status();
    if (saved.ok()) {
      saved = saver->Save(s, save_path(), *step >= 0 ? std::optional<int64_t>(*step) : std::nullopt)
                  .status();
    }
    {
      MutexLock lock(&mu);
      const absl::Time now = clock->Now();
      while (saved.ok() && due <= now) due += period;
      if (saved.ok()) retry_wait = absl::ZeroDuration();
      // Whoever stops it closes its session, too.
      if (!saved.ok() && service != number) return;
    }
    if (saved.ok()) continue;
    if (!MayTryAgain(saved)) {
      const Status failure = Prefixed("Supervisor: checkpoint not written", saved);
      saver->NoteFailure(failure);
      RequestStop(failure, /*asked=*/false);
      return;
    }
    SaveFailed(step.ok() ? PathOfStep(*step) : save_path(), saved);
  }
}

void Supervisor::Impl::SaveFailed(const std::string& path, const Status& saved) {
  const Status failure =
      Suffixed(Prefixed("Supervisor: checkpoint not written", saved),
               absl::StrCat("; '", path, "' has ", variable_bytes, " bytes of variables"));
  saver->NoteFailure(WithCodeOfSave(failure));
  absl::Duration wait;
  {
    MutexLock lock(&mu);
    const absl::Duration least = std::max(options.recovery_wait, absl::Milliseconds(1));
    wait = std::max(retry_wait, least);
    retry_wait = std::min(2 * wait, std::max(kMaxRetryWait, least));
    retry_at = options.clock->Now() + wait;
    stop_cv.SignalAll();
  }
  LogWarning(OneLine(failure), "; it is tried again in ", absl::FormatDuration(wait));
}

void Supervisor::Impl::WatchSignals() {
  if (!options.handle_signals) return;
  MutexLock lock(&mu);
  if (watch != nullptr || should_stop) return;
  StatusOr<std::unique_ptr<SignalWatch>> started =
      SignalWatch::Start([this](int number) { OnSignal(number); });
  if (started.ok()) {
    watch = *std::move(started);
  } else {
    LogWarning("Supervisor: signals end the program without a last checkpoint: ",
               started.status().message());
  }
}

void Supervisor::Impl::NoteSignal(int number) {
  if (signal != 0) return;
  signal = number;
  const char* const name = number == SIGINT ? "SIGINT" : "SIGTERM";
  LogInfo("Supervisor: got ", name, ", ends", keeps_checkpoints() ? " with a last checkpoint" : "",
          "; another one ends the program at once");
  RequestStopLocked(
      WithExitCode(absl::CancelledError(absl::StrCat("Supervisor: ended by ", name)), 128 + number),
      /*asked=*/true);
}

void Supervisor::Impl::OnSignal(int number) {
  {
    MutexLock lock(&mu);
    if (stop_begun) return;
    NoteSignal(number);
  }
  Clock* const clock = options.clock;
  const absl::Time begin = clock->Now();
  const absl::Duration grace = StopGrace();
  const absl::Duration time = keeps_checkpoints() ? grace / kStepPart : kStepTime;
  {
    MutexLock lock(&mu);
    while (!stop_begun && clock->Now() < begin + time) {
      clock->WaitUntil(&stop_cv, &mu, begin + time);
    }
    if (stop_begun || session == nullptr) return;
  }
  // The step hangs, or what feeds it does: what is trained is saved beside it.
  MutexLock stopping(&stop_mu);
  LogWarning("Supervisor: the step that runs did not end within ", absl::FormatDuration(time),
             ", its session is closed");
  const absl::Time deadline = begin + grace;
  const bool services_ended = StopServices(deadline);
  StatusOr<std::string> saved = std::string();
  if (NeedsLastSave()) saved = SaveLast(services_ended, deadline);
  std::shared_ptr<Session> s;
  {
    MutexLock lock(&mu);
    s = std::move(session);
    session = nullptr;
    saved_beside = saved;
  }
  if (!saved.ok()) LogWarning(saved.status().message());
  if (s != nullptr) Close(std::move(s));
}

bool Supervisor::Impl::NeedsLastSave() const {
  MutexLock lock(&mu);
  return !last_save_done && !IsSessionLost(first_error) && !IsLossNotFinite(first_error) &&
         !IsFenced(first_error);
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
  impl_->WatchSignals();
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
    impl_->target = target;
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
  // The thread of the watch may be late: no step after a signal.
  const int number = impl_->watch != nullptr ? impl_->watch->signal() : 0;
  if (number != 0) impl_->NoteSignal(number);
  return impl_->should_stop;
}

int Supervisor::signal() const {
  MutexLock lock(&impl_->mu);
  return impl_->signal;
}

StatusOr<std::string> Supervisor::Save(int64_t step) {
  if (!impl_->keeps_checkpoints()) return std::string();
  std::shared_ptr<Session> session;
  {
    MutexLock lock(&impl_->mu);
    session = impl_->session;
    // In the pause before the next try.
    const bool is_due =
        impl_->retry_at == absl::InfiniteFuture() || impl_->retry_at <= impl_->options.clock->Now();
    if (session == nullptr || (!is_due && !impl_->saver->failure().ok())) return std::string();
  }
  StatusOr<std::string> path = impl_->saver->Save(session.get(), save_path(), step);
  if (path.ok()) {
    MutexLock lock(&impl_->mu);
    impl_->retry_wait = absl::ZeroDuration();
    return path;
  }
  if (!MayTryAgain(path.status()) || IsSessionLost(path.status())) return path;
  impl_->SaveFailed(impl_->PathOfStep(step), path.status());
  MutexLock lock(&impl_->mu);
  // A stop that has begun makes the last checkpoint itself, and would not end this service.
  if (impl_->save_call == nullptr && impl_->session == session && !impl_->stop_begun) {
    impl_->StartService();
  }
  return std::string();
}

void Supervisor::RequestStop(const Status& reason) { impl_->RequestStop(reason, /*asked=*/true); }

void Supervisor::NothingToSave() {
  if (impl_->saver != nullptr) impl_->saver->ForgetFailure();
  MutexLock lock(&impl_->mu);
  impl_->last_save_done = true;
}

Status Supervisor::Stop() {
  const Status error = impl_->End();
  std::unique_ptr<SignalWatch> watch;  // which may be in OnSignal, and is waited for without a lock
  {
    MutexLock lock(&impl_->mu);
    watch = std::move(impl_->watch);
  }
  return error;
}

Status Supervisor::Impl::End() {
  RequestStop(absl::OkStatus(), /*asked=*/false);
  {
    MutexLock lock(&mu);
    stop_begun = true;
    stop_cv.SignalAll();
  }
  MutexLock stopping(&stop_mu);
  const absl::Time deadline = StopDeadline();
  const bool services_ended = StopServices(deadline);
  StatusOr<std::string> saved = std::string();
  if (NeedsLastSave()) {
    saved = SaveLast(services_ended, deadline);
    if (!saved.ok()) LogWarning(saved.status().message());
  }
  std::shared_ptr<Session> s;
  std::optional<std::string> done_reason;
  Status error;
  {
    MutexLock lock(&mu);
    s = std::move(session);
    session = nullptr;
    if (saved.ok() && saved->empty()) saved = std::exchange(saved_beside, std::string());
    if (signal != 0 && ExitCode(first_error) == 128 + signal) {
      // What the program ends with says whether what was trained is kept.
      if (!saved.ok()) first_error = Prefixed(first_error.message(), saved.status());
      if (saved.ok() && !saved->empty()) {
        first_error = Suffixed(first_error, absl::StrCat("; saved ", *saved));
      }
    }
    first_error.Update(saved.status());
    // A save that the service could not make, and nobody since.
    if (saver != nullptr) first_error.Update(saver->failure());
    error = first_error;
    done_reason = done;
  }
  if (s == nullptr) return error;
  if (error.ok() && done_reason && options.is_chief && !options.session.run.empty()) {
    // A small file and a call, also when the last checkpoint took all the time.
    TellEnd(s, *done_reason, std::max(deadline, options.clock->Now() + kCloseTime));
  }
  // What is still blocked in the session ends with it; its own errors do not matter any more.
  Close(std::move(s));
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
    if (!session.ok()) {
      return supervisor->signal() != 0 ? absl::OkStatus() : EndedWell(session.status());
    }
    if (supervisor->first_step() > furthest) {
      furthest = supervisor->first_step();
      recoveries = 0;
    }
    const Status status = body(session->get());
    // Who asked this task to end may have asked the parameter servers, too, and a step that did not
    // end had its session closed.
    if (supervisor->signal() != 0 && (IsSessionLost(status) || absl::IsCancelled(status))) {
      return absl::OkStatus();
    }
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
      staleness.max <= 0
          ? std::string("lower the learning rate or look for bad input")
          : absl::StrFormat(
                "this task's gradients were stale by %.1f updates of other tasks on "
                "average, %d at most: lower the learning rate, to about 1/%.0f of what "
                "one task alone stands, or train with fewer workers; or look for bad "
                "input",
                staleness.mean, staleness.max, 1 + staleness.mean);
  Status status = InvalidArgument("NaN guard: the loss must be finite, got ",
                                  std::isnan(bad) ? "nan" : (bad > 0 ? "inf" : "-inf"),
                                  " at global step ", step, "; ", hint);
  status.SetPayload(kLossNotFinite, absl::Cord());
  return status;
}

bool IsLossNotFinite(const Status& status) { return status.GetPayload(kLossNotFinite).has_value(); }

}  // namespace millrace
